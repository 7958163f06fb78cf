"""Which inputs a compiled program gathers whole on each device, read from XLA's text of it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%?(\S+) = (.+?) ([a-z][a-z0-9-]*)\((.*)")
_SHAPE = re.compile(r"\w+\[([\d,]*)\]")
_SAME = {"bitcast", "collective-permute", "convert", "copy", "fusion", "reshape", "transpose"}  # give the same elements, perhaps
_GATHERS = {"all-gather", "all-gather-start", "all-gather-done"}


def gathered(text: str, sizes: Mapping[int, int]) -> set[int]:
    """Of the parameters of a program's entry, by number, those that an all-gather makes whole; ``sizes`` are their elements.

    What XLA does to a part on the way, a cast or a transposition, is seen through. Gathers within loops aren't looked for.
    """
    found: set[int] = set()
    if "all-gather" not in text:
        return found
    # by instruction, for each of its results: which parameter that is, and how many elements of it
    held: dict[str, list[tuple[int | None, int]]] = {}
    for line in text[text.index("\nENTRY ") :].splitlines():
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        name, shapes, operation, rest = match.groups()
        counts = [math.prod(map(int, filter(None, shape.split(",")))) for shape in _SHAPE.findall(shapes)]
        inside = rest.partition("), ")[0].rstrip(")")
        given = [held.get(operand, [(None, 0)]) for operand in re.findall(r"%([^\s,)]+)", inside)]
        if operation == "parameter" and int(inside) in sizes:
            held[name] = [(int(inside), counts[0])]
        elif operation == "get-tuple-element":
            index = int(rest.partition("index=")[2].partition(",")[0])
            held[name] = given[0][index : index + 1] or [(None, 0)]
        elif operation in _SAME and len(given) == 1 and counts[0] == given[0][0][1]:
            held[name] = given[0]
        elif operation in _GATHERS:
            whose = [result[0] for one in given for result in one]
            held[name] = list(zip(whose, counts[-len(whose) :], strict=True))
            found.update(number for number, count in held[name] if number is not None and count == sizes[number])
    return found
