"""A file's text as one Python program, whatever it is stored as: a script, or the code cells of a notebook."""

from __future__ import annotations

import io
import json
import re
import tokenize
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

_MAGIC = re.compile(r"^(\s*(?:[\w.,\s]+=\s*)?)([%!].*|\?.*|[\w.]+\?{1,2}\s*)$")
_PYTHON_CELL_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%python")
_NOQA = re.compile(r"#\s*noqa(?::\s*(?P<codes>[A-Z]+\d+(?:[\s,]+[A-Z]+\d+)*))?", re.IGNORECASE)


class SourceError(Exception):
    """A file that can't be read as Python or as a notebook."""


@dataclass
class Source:
    """``text`` is what edits change; ``python`` has the same length, with a notebook's magics masked."""

    path: str
    text: str
    python: str = ""
    notebook: dict[str, Any] | None = None
    cells: list[tuple[int, int, int]] = field(default_factory=list)  # (index in the notebook, start, end)

    @classmethod
    def read(cls, path: str, data: bytes) -> Source:
        """Decodes a file.

        Raises:
            SourceError: It is neither Python text nor a notebook.
        """
        if path.endswith(".ipynb"):
            return cls.from_notebook(path, data)
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            text = data.decode(encoding)
        except (SyntaxError, UnicodeDecodeError, LookupError) as error:
            raise SourceError(f"can't be decoded: {error}") from error
        return cls(path, text, text)

    @classmethod
    def from_notebook(cls, path: str, data: bytes) -> Source:
        """The code cells, one after the other, each ending in a line break."""
        try:
            notebook = json.loads(data)
            cells = [(index, cell["source"]) for index, cell in enumerate(notebook["cells"]) if cell["cell_type"] == "code"]
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(f"isn't a notebook: {error!r}") from error
        source = cls(path, "", "", notebook)
        texts, start = [], 0
        for index, lines in cells:
            text = lines if isinstance(lines, str) else "".join(lines)
            source.cells.append((index, start, start + len(text)))
            texts.append(text + "\n")
            start += len(text) + 1
        source.text = "".join(texts)
        source.python = "".join(_mask(text) for text in texts)
        return source

    def with_text(self, text: str, ends: list[int]) -> Source:
        """The same file with another text; ``ends`` says where each cell ends in it."""
        if self.notebook is None:
            return Source(self.path, text, text)
        notebook = json.loads(json.dumps(self.notebook))
        start = 0
        for (index, _, _), end in zip(self.cells, ends, strict=True):
            cell = notebook["cells"][index]
            new = text[start:end]
            cell["source"] = new if isinstance(cell["source"], str) else new.splitlines(keepends=True)
            start = end + 1
        return Source.from_notebook(self.path, json.dumps(notebook).encode())

    def encode(self, like: bytes) -> bytes:
        """The file's bytes: a notebook with the indentation that it had, a script in its own encoding."""
        if self.notebook is None:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(like).readline)
            return self.text.encode(encoding)
        old = like.decode()
        indented = re.search(r"\n([ \t]+)\S", old)
        indent = indented[1] if indented else None
        separators = None if indent or '": ' in old else (",", ":")
        dumped = json.dumps(self.notebook, indent=indent, ensure_ascii="\\u" in old, separators=separators)
        return (dumped + ("\n" if old.endswith("\n") else "")).encode()

    @cached_property
    def masked(self) -> str:
        """The text of a notebook's magics; nothing for a script."""
        if self.text == self.python:
            return ""
        return "".join(a if a != b else " " for a, b in zip(self.text, self.python, strict=True))

    @cached_property
    def starts(self) -> list[int]:
        """The offset at which each line starts, as Python counts lines."""
        return [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", self.python))]

    @cached_property
    def lines(self) -> list[str]:
        """The lines, without their ends."""
        ends = [*self.starts[1:], len(self.python)]
        return [self.python[start:end].rstrip("\r\n") for start, end in zip(self.starts, ends, strict=True)]

    def offset(self, line: int, byte_column: int) -> int:
        """The character offset of an AST position (lines from 1, columns in UTF-8 bytes)."""
        text = self.lines[line - 1]
        column = byte_column if text.isascii() else len(text.encode()[:byte_column].decode())
        return self.starts[line - 1] + column

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both from 1."""
        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1

    def place(self, line: int) -> tuple[int | None, int]:
        """The notebook cell (from 1) and the line in it; no cell and the line itself for a script."""
        if self.notebook is None:
            return None, line
        start = self.starts[line - 1]
        which = max((number for number, cell in enumerate(self.cells) if cell[1] <= start), default=0)
        index, begin, _ = self.cells[which]
        return index + 1, line - self.position(begin)[0] + 1

    def silenced(self, first: int, last: int, code: str) -> bool:
        """Whether a ``# noqa`` on one of the lines covers the code."""
        for line in self.lines[first - 1 : last]:
            if found := _NOQA.search(line):
                codes = found["codes"]
                if codes is None or code in re.split(r"[\s,]+", codes.upper()):
                    return True
        return False


def _mask(text: str) -> str:
    """A cell with its magics made into numbers and comments of the same length."""
    first = text.lstrip().split(None, 1)[:1]
    if first and first[0].startswith("%%") and first[0] not in _PYTHON_CELL_MAGICS:
        return re.sub(r"[^\n]+", lambda line: "#" * len(line[0]), text)
    masked, continues = [], False
    for line in text.splitlines(keepends=True):
        body, end = line.rstrip("\r\n"), line[len(line.rstrip("\r\n")) :]
        if continues:
            continues = body.endswith("\\")
            body = "#" * len(body)
        elif magic := _MAGIC.match(body):
            continues = body.endswith("\\")
            body = magic[1] + ("0" + "#" * len(magic[2]))[: len(magic[2])]
        masked.append(body + end)
    return "".join(masked)
