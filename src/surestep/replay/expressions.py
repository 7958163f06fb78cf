"""What an expression gives, as far as it can be known without evaluating what could have an effect."""

from __future__ import annotations

import ast
import builtins
import enum
import operator
import types
from contextlib import ExitStack, suppress
from typing import Any

import torch

from surestep.replay import attributes, calls, instances, reasons, stores
from surestep.replay.values import Bound, Either, Known, Local, Missing, New, NotReplayable, Value, join, plain

_BINARY: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.MatMult: operator.matmul,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_,
}
_COMPARE: dict[type[ast.cmpop], Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_UNARY: dict[type[ast.unaryop], Any] = {ast.UAdd: operator.pos, ast.USub: operator.neg, ast.Invert: operator.invert}


def evaluate(walk: Any, frame: Any, node: ast.expr) -> Value:
    """The value of an expression. Raises ``NotReplayable`` at its line."""
    walk.budget -= 1
    if walk.budget < 0:
        raise walk.refuse(frame, node, "the step is too long to be followed")
    handler = _HANDLERS.get(type(node))
    if handler is None:
        raise walk.refuse(frame, node, f"`{ast.unparse(node)}` is not followed. Compute it outside of the step, and pass it")
    try:
        return handler(walk, frame, node)
    except NotReplayable as error:
        error.locate(frame.file, node.lineno)
        raise


def is_tensor(value: Value) -> bool:
    """Whether it is a tensor, or a result that may well be one."""
    return (isinstance(value, Known) and isinstance(value.object, torch.Tensor)) or (
        isinstance(value, New) and value.type in (None, torch.Tensor)
    )


def require_owned(container: New) -> None:
    """A container is about to be changed, which must be the call's own."""
    if not container.owned:
        raise NotReplayable("a list or dict that was handed in is changed, which outlives the call. Return a new one")


def truth(walk: Any, value: Value) -> bool | None:
    """``bool(value)``; None where it isn't known."""
    if isinstance(value, Known):
        thing = value.object
        if isinstance(thing, torch.Tensor):
            return None
        if plain(thing):
            return bool(thing)
        if type(thing) in (list, dict, set, tuple):
            attributes.guard_content(walk, value)
            return bool(thing)
        if type(thing) in (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict):
            return len(attributes.children(walk, value)) > 0
        walk.guards.type(thing)
        if any(attributes.in_class(walk, type(thing), name) for name in ("__bool__", "__len__")):
            raise NotReplayable(f"whether {value} is true is asked, which its class decides. Ask for an attribute of it")
        return True
    if isinstance(value, New):
        if instances.is_instance(value):
            return instances.truth(walk, value)
        if (value.type in (list, tuple, dict, set) or instances.is_named_tuple(value.type)) and value.items is not None:
            return len(value.items) > 0
        return True if value.type is object else None
    if isinstance(value, Bound):
        raise NotReplayable(f"whether {value} is true is asked")
    return None if isinstance(value, Either) else True


def binary(walk: Any, kind: ast.operator, left: Value, right: Value) -> Value:
    """``left op right``"""
    if isinstance(left, Known) and isinstance(right, Known) and plain(left.object) and plain(right.object):
        try:
            return Known(_BINARY[type(kind)](left.object, right.object))
        except Exception as error:
            raise NotReplayable(f"an operation raises {error!r}") from error
    for one, other in ((left, right), (right, left)):
        if isinstance(one, New) and one.type in (list, tuple) and isinstance(other, New) and other.type is one.type:
            if left.items is not None and right.items is not None and isinstance(kind, ast.Add):  # type: ignore[missing-attribute]
                return New(one.type, [*left.items, *right.items])  # type: ignore[missing-attribute]
            return New(one.type)
    for value in (left, right):
        if not _countable(value):
            raise NotReplayable(reasons.unfit(value))
        calls.read(walk, value)
    name = _BINARY[type(kind)].__name__.strip("_")
    attributes.own_of_tensors(walk, f"__{name}__", f"__r{name}__", f"__i{name}__")
    kinds = {value.type if isinstance(value, New) else type(value.object) for value in (left, right)}  # type: ignore[missing-attribute]
    return New(str) if kinds == {str} else New(nullable=False)


def _countable(value: Value) -> bool:
    """What arithmetic on it has no effect."""
    if isinstance(value, Known):
        return plain(value.object) or isinstance(value.object, torch.Tensor)
    return instances.computes(value)


def set_item(walk: Any, container: Value, key: Value, value: Value) -> None:
    """``container[key] = value``"""
    if instances.special(walk, container, "__setitem__", [key, value]) is not None:
        return
    if not isinstance(container, New) or container.type not in (list, dict):
        raise NotReplayable(f"an entry of {container} is changed, which outlives the call. Keep it in a tensor, or return it")
    require_owned(container)
    if not walk.branches and container.type is dict and isinstance(container.items, dict) and isinstance(key, Known) and plain(key.object):
        container.items[key.object] = value
    else:
        container.items = None


def _constant(walk: Any, frame: Any, node: ast.Constant) -> Value:
    return Known(node.value)


def _name(walk: Any, frame: Any, node: ast.Name) -> Value:
    return lookup(walk, frame, node.id)


def lookup(walk: Any, frame: Any, name: str) -> Value:
    """A name: the call's own, an enclosing function's, a global, or Python's."""
    scope = frame
    while scope is not None:
        if name in scope.names:
            return scope.names[name]
        if scope.function is not None:
            return _outside(walk, scope.function, name)
        scope = scope.outer
    raise NotReplayable(f"the name {name!r} is not found")


def _outside(walk: Any, function: Any, name: str) -> Value:
    code = function.__code__
    if name in code.co_freevars:
        cell = function.__closure__[code.co_freevars.index(name)]
        try:
            value = cell.cell_contents
        except ValueError:
            raise NotReplayable(f"the variable {name!r} has no value yet") from None
        walk.guards.cell(cell, value, name)
        return walk.known(value, name)
    names = function.__globals__
    if name in names:
        walk.guards.item(names, name, names[name], "the global ")
        return walk.known(names[name], name)
    if hasattr(builtins, name):
        walk.guards.lacks(names, name, "the globals")
        walk.guards.item(vars(builtins), name, vars(builtins)[name], "Python's ")
        return Known(getattr(builtins, name), name)
    raise NotReplayable(f"the name {name!r} is not found")


def _attribute(walk: Any, frame: Any, node: ast.Attribute) -> Value:
    return attributes.attribute(walk, evaluate(walk, frame, node.value), mangled(frame, node.attr))


def mangled(frame: Any, name: str) -> str:
    """A private name (``self.__k``) as the class that the code is written in makes it."""
    if not name.startswith("__") or name.endswith("__"):
        return name
    scope = frame
    while scope is not None and scope.owner is None:
        scope = scope.outer
    if scope is None:
        raise NotReplayable(f"the private name {name}, of which the class is not known")
    return f"_{scope.owner.__name__.lstrip('_')}{name}"


def _subscript(walk: Any, frame: Any, node: ast.Subscript) -> Value:
    return attributes.subscript(walk, evaluate(walk, frame, node.value), evaluate(walk, frame, node.slice))


def _slice(walk: Any, frame: Any, node: ast.Slice) -> Value:
    parts = [Known(None) if part is None else evaluate(walk, frame, part) for part in (node.lower, node.upper, node.step)]
    if all(isinstance(part, Known) and plain(part.object) for part in parts):
        return Known(slice(*(part.object for part in parts)))  # type: ignore[missing-attribute]
    for part in parts:
        calls.read(walk, part)
    return New(slice)


def _call(walk: Any, frame: Any, node: ast.Call) -> Value:
    if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
        return calls.super_of(walk, frame)
    function = evaluate(walk, frame, node.func)
    args: list[Value] = []
    for argument in node.args:
        if isinstance(argument, ast.Starred):
            items = attributes.iterate(walk, evaluate(walk, frame, argument.value))
            if items is None:
                if not calls.takes_any(function):
                    raise walk.refuse(
                        frame, node, f"`{ast.unparse(argument)}`: how many arguments these are is not known. Pass them one by one"
                    )
                items = [New()]
            args.extend(items)
        else:
            args.append(evaluate(walk, frame, argument))
    kwargs: dict[str, Value] = {}
    for keyword in node.keywords:
        value = evaluate(walk, frame, keyword.value)
        if keyword.arg is None:
            kwargs.update(attributes.mapping(walk, value))
        else:
            kwargs[keyword.arg] = value
    walk.line = (frame.file, node.lineno)
    return calls.call(walk, function, args, kwargs)


def _binop(walk: Any, frame: Any, node: ast.BinOp) -> Value:
    return binary(walk, node.op, evaluate(walk, frame, node.left), evaluate(walk, frame, node.right))


def _unaryop(walk: Any, frame: Any, node: ast.UnaryOp) -> Value:
    value = evaluate(walk, frame, node.operand)
    if isinstance(node.op, ast.Not):
        known = truth(walk, value)
        return New(bool) if known is None else Known(not known)
    if isinstance(value, Known) and plain(value.object):
        return Known(_UNARY[type(node.op)](value.object))
    if not _countable(value):
        raise NotReplayable(reasons.unfit(value))
    calls.read(walk, value)
    attributes.own_of_tensors(walk, f"__{_UNARY[type(node.op)].__name__}__")
    return New(nullable=False)


def _boolop(walk: Any, frame: Any, node: ast.BoolOp) -> Value:
    stops = isinstance(node.op, ast.Or)  # `or` ends at the first that is true
    result: Value | None = None
    with ExitStack() as stack:
        for position, part in enumerate(node.values):
            value = evaluate(walk, frame, part)
            result = value if result is None else join(result, value)
            known = truth(walk, value)
            if known is stops or position == len(node.values) - 1:
                return result
            if known is not None:
                result = None
            else:
                stack.enter_context(walk.undecided())  # whether Python comes to the next one
    raise AssertionError("an operation has operands")


def _compare(walk: Any, frame: Any, node: ast.Compare) -> Value:
    left = evaluate(walk, frame, node.left)
    result: Value = Known(True)
    with ExitStack() as stack:
        for kind, part in zip(node.ops, node.comparators, strict=True):
            right = evaluate(walk, frame, part)
            one = _compared(walk, kind, left, right)
            if isinstance(one, Known) and not one.object:
                return one
            if not isinstance(one, Known):
                stack.enter_context(walk.undecided())
            result = one if isinstance(result, Known) else result
            left = right
    return result


def _compared(walk: Any, kind: ast.cmpop, left: Value, right: Value) -> Value:
    identity = isinstance(kind, (ast.Is, ast.IsNot))
    if identity and not (_has_identity(left, right) and _has_identity(right, left)):
        raise NotReplayable(
            f"whether {left} and {right} are one object is asked, and only their content is the same at each call. Compare with =="
        )
    if isinstance(left, Known) and isinstance(right, Known):
        if identity or (plain(left.object) and plain(right.object)):
            return Known(bool(_COMPARE[type(kind)](left.object, right.object)))
        if isinstance(kind, (ast.In, ast.NotIn)) and type(right.object) in (*attributes.DICTS, list, set) and plain(left.object):
            attributes.guard_content(walk, right)
            if not all(plain(item) or type(item).__eq__ is object.__eq__ for item in right.object):
                raise NotReplayable(
                    f"whether {left} is in {right} is asked, which its elements' class decides (__eq__). Ask before the step"
                )
            return Known(bool(_COMPARE[type(kind)](left.object, right.object)))
        if isinstance(left.object, type) and isinstance(right.object, type):
            return Known(bool(_COMPARE[type(kind)](left.object, right.object)))
    if isinstance(kind, (ast.In, ast.NotIn)):
        found = instances.special(walk, right, "__contains__", [left])
        if isinstance(found, Known):
            return Known(bool(found.object) is isinstance(kind, ast.In))
    if identity:
        for one, other in ((left, right), (right, left)):
            if (
                isinstance(one, Known)
                and one.object is None
                and isinstance(other, (New, Bound, Local))
                and not getattr(other, "nullable", False)
            ):
                return Known(isinstance(kind, ast.IsNot))
        return New(bool)
    if (
        isinstance(kind, (ast.In, ast.NotIn))
        and isinstance(right, New)
        and right.type is dict
        and isinstance(left, Known)
        and right.items is not None
    ):
        return Known((left.object in right.items) is isinstance(kind, ast.In))
    if isinstance(kind, (ast.In, ast.NotIn)) and isinstance(right, New) and right.type in (list, tuple):
        items = None if right.items is None else [left, *right.items]
        if items is not None and all(isinstance(item, Known) and plain(item.object) for item in items):
            found = any(item.object == left.object for item in items[1:])  # type: ignore[missing-attribute]
            return Known(found is isinstance(kind, ast.In))
    if all(_countable(value) for value in (left, right)):
        for value in (left, right):
            calls.read(walk, value)
        if type(kind) not in (ast.In, ast.NotIn):
            attributes.own_of_tensors(walk, f"__{_COMPARE[type(kind)].__name__}__")
        return New()
    raise NotReplayable(f"{left} is compared with {right}: {reasons.unfit(right if _countable(left) else left)}")


def _has_identity(value: Value, other: Value) -> bool:
    """Whether `is` says the same of it at each call. A list that is handed in is known by its content, and so are numbers and texts."""
    if isinstance(other, Known) and (other.object is None or isinstance(other.object, (bool, type))):
        return True
    if isinstance(value, Known):
        return not isinstance(value.object, (int, float, complex, str, bytes, tuple, frozenset)) or isinstance(value.object, enum.Enum)
    return not isinstance(value, New) or value.owned


def _ifexp(walk: Any, frame: Any, node: ast.IfExp) -> Value:
    known = truth(walk, evaluate(walk, frame, node.test))
    if known is not None:
        return evaluate(walk, frame, node.body if known else node.orelse)
    ways = []
    with walk.undecided():
        for way in (node.body, node.orelse):
            with suppress(Missing):  # a way that raises is no way of a call that is replayed
                ways.append(evaluate(walk, frame, way))
    if not ways:
        raise NotReplayable(f"`{ast.unparse(node)}` asks for what is not there")
    return ways[0] if len(ways) == 1 else join(*ways)


def _sequence(kind: type) -> Any:
    def make(walk: Any, frame: Any, node: Any) -> Value:
        items: list[Value] | None = []
        for part in node.elts:
            if isinstance(part, ast.Starred):
                more = attributes.iterate(walk, evaluate(walk, frame, part.value))
                items = None if more is None or items is None else items + more
            else:
                value = evaluate(walk, frame, part)
                items = None if items is None else [*items, value]
        if kind is tuple and items is not None and all(isinstance(item, Known) and plain(item.object) for item in items):
            return Known(tuple(item.object for item in items))  # type: ignore[missing-attribute]
        return New(kind, items)

    return make


def _dict(walk: Any, frame: Any, node: ast.Dict) -> Value:
    items: dict[Any, Value] | None = {}
    for key, value in zip(node.keys, node.values, strict=True):
        found = evaluate(walk, frame, value)
        if key is None:
            more = attributes.mapping(walk, found)
            items = None if items is None else {**items, **more}
            continue
        name = evaluate(walk, frame, key)
        if items is not None and isinstance(name, Known) and plain(name.object):
            items[name.object] = found
        else:
            items = None
    return New(dict, items)


def _joinedstr(walk: Any, frame: Any, node: ast.JoinedStr) -> Value:
    parts: list[Value] = []
    for part in node.values:
        if not isinstance(part, ast.FormattedValue):
            parts.append(evaluate(walk, frame, part))
            continue
        value = evaluate(walk, frame, part.value)
        how = Known("") if part.format_spec is None else evaluate(walk, frame, part.format_spec)
        if not _countable(value) or (isinstance(value, Known) and isinstance(value.object, enum.Enum)):
            raise walk.refuse(frame, part, f"a text is made of {value}. Make it outside of the step, or of numbers and texts")
        simple = isinstance(value, Known) and type(value.object) in (int, float, bool, str, type(None))
        if simple and isinstance(how, Known) and part.conversion == -1:
            parts.append(Known(format(value.object, how.object)))  # type: ignore[missing-attribute]
        else:
            parts.append(New(str))
    if all(isinstance(part, Known) for part in parts):
        return Known("".join(part.object for part in parts))  # type: ignore[missing-attribute]
    return New(str)


def _comprehension(kind: type) -> Any:
    def make(walk: Any, frame: Any, node: Any) -> Value:
        if any(isinstance(inner, ast.NamedExpr) for inner in ast.walk(node)):
            raise NotReplayable("`:=` in a comprehension is not followed. Write a loop")
        first = evaluate(walk, frame, node.generators[0].iter)
        if kind is types.GeneratorType:
            return New(kind, walk.later(lambda: _elements(walk, frame, node, first)))
        return New(kind, _elements(walk, frame, node, first))

    return make


def _elements(walk: Any, frame: Any, node: Any, first: Value) -> Any:
    """What a comprehension makes, with names of its own; None where that isn't known one by one."""
    inner = frame.inside()
    elements: Any = {} if isinstance(node, ast.DictComp) else []
    stack = ExitStack()

    def one() -> None:
        nonlocal elements
        if not isinstance(node, ast.DictComp):
            value = evaluate(walk, inner, node.elt)
            elements = None if elements is None else [*elements, value]
            return
        key, value = evaluate(walk, inner, node.key), evaluate(walk, inner, node.value)
        known = elements is not None and isinstance(key, Known) and plain(key.object)
        elements = {**elements, key.object: value} if known else None  # type: ignore[missing-attribute]

    def over(position: int) -> None:
        nonlocal elements
        if position == len(node.generators):
            one()
            return
        generator = node.generators[position]
        source = first if position == 0 else evaluate(walk, inner, generator.iter)
        items = attributes.iterate(walk, source)
        if items is None:
            items = [attributes.element(walk, source)]
            elements = None
            stack.enter_context(walk.undecided())
        for item in items:
            stores.store(walk, inner, generator.target, item)
            known: bool | None = True
            for test in generator.ifs:
                found = truth(walk, evaluate(walk, inner, test))
                known = None if found is None else known and found
                if found is None:
                    elements = None
                    stack.enter_context(walk.undecided())
                elif not found:
                    break
            if known is not False:
                over(position + 1)

    with stack:  # what is not decided anywhere isn't decided to the end
        over(0)
    return elements


def _lambda(walk: Any, frame: Any, node: ast.Lambda) -> Value:
    return local(walk, frame, node)


def local(walk: Any, frame: Any, node: ast.FunctionDef | ast.Lambda) -> Local:
    """A function that the call defines; its defaults are evaluated here, as Python does."""
    defaults = [evaluate(walk, frame, each) for each in node.args.defaults]
    named = {
        argument.arg: evaluate(walk, frame, default)
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        if default is not None
    }
    return Local(node, frame, defaults, named)


def _namedexpr(walk: Any, frame: Any, node: ast.NamedExpr) -> Value:
    value = evaluate(walk, frame, node.value)
    stores.store(walk, frame, node.target, value)
    return value


_HANDLERS: dict[type[ast.expr], Any] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Slice: _slice,
    ast.Call: _call,
    ast.BinOp: _binop,
    ast.UnaryOp: _unaryop,
    ast.BoolOp: _boolop,
    ast.Compare: _compare,
    ast.IfExp: _ifexp,
    ast.Tuple: _sequence(tuple),
    ast.List: _sequence(list),
    ast.Set: _sequence(set),
    ast.Dict: _dict,
    ast.JoinedStr: _joinedstr,
    ast.ListComp: _comprehension(list),
    ast.SetComp: _comprehension(set),
    ast.GeneratorExp: _comprehension(types.GeneratorType),
    ast.DictComp: _comprehension(dict),
    ast.Lambda: _lambda,
    ast.NamedExpr: _namedexpr,
}
