"""Following a step's code without running it: whatever it reads from outside is noted as a guard, and whatever could make one call differ
from the next by more than tensors' values is refused.

It is an abstract interpretation of the syntax tree, from the objects that the function can see. Nothing is evaluated that could have an
effect. A branch on something that isn't known is followed both ways.
"""

from __future__ import annotations

import ast
import copy
import sys
import types
from collections.abc import Callable, Generator, Hashable, Iterable
from contextlib import contextmanager
from typing import Any

import torch

from surestep.replay import attributes, calls, expressions, parameters, reasons, stores
from surestep.replay.guards import Guards
from surestep.replay.known import managers
from surestep.replay.source import definition
from surestep.replay.values import Argument, Either, Known, Local, Missing, New, NotReplayable, Value, join, plain

_BUDGET = 200_000  # nodes: a step that unrolls to more is not followed to its end
_DEPTH = 60  # calls within calls

Names = dict[str, Value]
_OTHERWISE: dict[type[ast.stmt], str] = {
    ast.Match: "a match statement is not followed. Write it with if and elif",
    ast.ClassDef: "a class is defined inside. Define it outside of the step",
}
NEVER = Known(None)  # given by a function that always raises: no call does that is replayed, unless it is asked for attributes


class Frame:
    """One call that is followed: its names, where they come from, and what it returns."""

    def __init__(self, file: str, function: Any = None, outer: Frame | None = None, owner: type | None = None):
        self.file = file
        self.function = function  # its globals and closure; None for what the call itself defines
        self.outer = outer
        self.owner = owner  # the class that defines a method, for super()
        self.names: Names = {}
        self.returned: list[Value] = []
        self.breaks: list[list[Names]] = []
        self.continues: list[list[Names]] = []

    def inside(self) -> Frame:
        """For names of their own within this call: a function that it defines, a comprehension."""
        return Frame(self.file, None, outer=self, owner=self.owner)


class Walk:
    """The walk through one call: the guards so far, and how much may still be followed."""

    def __init__(self, guards: Guards):
        self.guards = guards
        self.budget = _BUDGET
        self.depth = 0
        self.kept: dict[tuple[int, Any], New] = {}
        self.scaling: set[int] = set()  # gradient scalers that are in the middle of a round
        self.raises = 0  # statements so far that raise
        self.branches = 0  # how many branches that weren't decided lie around
        self.line: tuple[str, int] = ("", 0)  # of the call that is followed
        self.waiting: list[Callable[[], Any]] = []  # generators' elements that nobody has asked for yet

    def known(self, thing: Any, path: str) -> Known:
        """An object that was found outside of the call."""
        found = Known(thing, path)
        if isinstance(thing, torch.Tensor):
            self.tensor(found)
        return found

    def tensor(self, value: Known) -> None:
        """A tensor is read or written. Arguments' tensors may be others at the next call; those from outside may not."""
        if not isinstance(value, Argument):
            self.guards.tensor(value.object, value.path)

    @contextmanager
    def undecided(self) -> Generator[None]:
        """What is followed inside may or may not happen, or happen several times."""
        self.branches += 1
        try:
            yield
        finally:
            self.branches -= 1

    def later(self, elements: Callable[[], Any]) -> Callable[[], Any]:
        """A generator's elements: Python evaluates them when they are asked for, with what the names are then."""

        def asked() -> Any:
            self.waiting.remove(asked)
            return elements()

        self.waiting.append(asked)
        return asked

    # Functions

    def function(self, function: Any, args: list[Value], kwargs: dict[str, Value], owner: type | None = None) -> Value:
        """What a Python function returns for these arguments."""
        node = definition(function.__code__)
        frame = Frame(function.__code__.co_filename, function, owner=owner)
        defaults: list[Value] = [Known(value, f"{function.__name__}'s default") for value in function.__defaults__ or ()]
        named: dict[str, Value] = {
            name: Known(value, f"{function.__name__}'s default") for name, value in (function.__kwdefaults__ or {}).items()
        }
        return self.call(node, frame, args, kwargs, defaults, named)

    def local(self, function: Local, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The same for a function that the call defines."""
        frame = function.frame.inside()
        return self.call(function.node, frame, args, kwargs, function.defaults, function.named)

    def call(
        self,
        node: ast.FunctionDef | ast.Lambda,
        frame: Frame,
        args: list[Value],
        kwargs: dict[str, Value],
        defaults: list[Value],
        named: dict[str, Value],
    ) -> Value:
        """Follows a function's body with its parameters bound; gives what it returns."""
        self.depth += 1
        if self.depth > _DEPTH:
            raise NotReplayable("the calls go too deep to be followed. Compile a part of it")
        frame.names = parameters.bound(self, frame, node, args, kwargs, defaults, named)
        try:
            if isinstance(node, ast.Lambda):
                return expressions.evaluate(self, frame, node.body)
            if any(isinstance(inner, (ast.Yield, ast.YieldFrom, ast.Await)) for inner in _own(node)):
                raise NotReplayable(f"{node.name} is a generator, which is not followed. Have it return a list")
            rest = self.block(frame, node.body, frame.names)
        finally:
            self.depth -= 1
        results = [*frame.returned, *([Known(None)] if rest is not None else [])]
        if not results:
            return NEVER
        result = results[0]
        for other in results[1:]:
            result = join(result, other)
        return result

    def refuse(self, frame: Frame, node: ast.AST, reason: str) -> NotReplayable:
        """The error at a node's line."""
        return NotReplayable(reason, frame.file, getattr(node, "lineno", 0))

    # Statements. Each takes the names before it, and gives those after it; None where it isn't left by the end.

    def block(self, frame: Frame, statements: Iterable[ast.stmt], names: Names | None) -> Names | None:
        """Statements, one after the other."""
        for statement in statements:
            if names is None:
                return None
            self.budget -= 1
            if self.budget < 0:
                raise self.refuse(frame, statement, "the step is too long to be followed. Compile a part of it")
            frame.names = names
            handler = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if handler is None:
                raise self.refuse(
                    frame, statement, _OTHERWISE.get(type(statement), f"a {type(statement).__name__.lower()} statement is not followed")
                )
            try:
                names = handler(frame, statement)
            except NotReplayable as error:
                error.locate(frame.file, statement.lineno)
                raise
        return names

    def _expr(self, frame: Frame, node: ast.Expr) -> Names:
        expressions.evaluate(self, frame, node.value)
        return frame.names

    def _pass(self, frame: Frame, node: ast.Pass) -> Names:
        return frame.names

    def _return(self, frame: Frame, node: ast.Return) -> None:
        frame.returned.append(Known(None) if node.value is None else expressions.evaluate(self, frame, node.value))
        if self.depth == 1:
            self.guards.returns.append((frame.returned[-1], frame.file, node.lineno))

    def _raise(self, frame: Frame, node: ast.Raise) -> None:
        self.raises += 1
        return None  # no call that raises is replayed

    def _assert(self, frame: Frame, node: ast.Assert) -> Names | None:
        if expressions.truth(self, expressions.evaluate(self, frame, node.test)) is False:
            self.raises += 1
            return None
        return frame.names

    def _assign(self, frame: Frame, node: ast.Assign) -> Names:
        value = expressions.evaluate(self, frame, node.value)
        for target in node.targets:
            stores.store(self, frame, target, value)
        return frame.names

    def _annassign(self, frame: Frame, node: ast.AnnAssign) -> Names:
        if node.value is not None:
            stores.store(self, frame, node.target, expressions.evaluate(self, frame, node.value))
        return frame.names

    def _augassign(self, frame: Frame, node: ast.AugAssign) -> Names:
        before = expressions.evaluate(self, frame, _as_load(node.target))
        operand = expressions.evaluate(self, frame, node.value)
        if expressions.is_tensor(before):
            expressions.binary(self, node.op, before, operand)
            stores.store(self, frame, node.target, before, in_place=True)  # the tensor itself is changed, and stays where it is
        elif isinstance(before, New) and before.type is list:
            expressions.require_owned(before)
            extra = attributes.iterate(self, operand)
            before.items = None if before.items is None or extra is None or self.branches else before.items + extra
        else:
            stores.store(self, frame, node.target, expressions.binary(self, node.op, before, operand))
        return frame.names

    def _delete(self, frame: Frame, node: ast.Delete) -> Names:
        for target in node.targets:
            if isinstance(target, ast.Name) and target.id in frame.names:
                frame.names = {name: value for name, value in frame.names.items() if name != target.id}
            else:
                raise self.refuse(frame, node, f"`{ast.unparse(node)}` changes something that outlives the call. Do it outside of the step")
        return frame.names

    def _global(self, frame: Frame, node: ast.Global | ast.Nonlocal) -> Names:
        raise self.refuse(
            frame,
            node,
            f"`{ast.unparse(node)}`: the call changes a variable that outlives it. Return the value, or keep it in a tensor that is "
            f"written in place",
        )

    _nonlocal = _global

    def _functiondef(self, frame: Frame, node: ast.FunctionDef) -> Names:
        if node.decorator_list:
            raise self.refuse(frame, node, "a decorated function is defined inside. Define it outside of the step")
        return {**frame.names, node.name: expressions.local(self, frame, node)}

    def _import(self, frame: Frame, node: ast.Import) -> Names:
        names = dict(frame.names)
        for alias in node.names:
            whole = alias.name if alias.asname else alias.name.partition(".")[0]
            if alias.name not in sys.modules:
                raise self.refuse(frame, node, f"{alias.name} is imported inside the step. Import it at the top of the file")
            self.guards.item(sys.modules, whole, sys.modules[whole], "module ")
            names[alias.asname or whole] = Known(sys.modules[whole], whole)
        return names

    def _importfrom(self, frame: Frame, node: ast.ImportFrom) -> Names:
        module = sys.modules.get(node.module or "")
        if module is None or node.level:
            raise self.refuse(frame, node, f"{node.module} is imported inside the step. Import it at the top of the file")
        self.guards.item(sys.modules, node.module, module, "module ")
        names = dict(frame.names)
        for alias in node.names:
            names[alias.asname or alias.name] = attributes.attribute(self, Known(module, module.__name__), alias.name)
        return names

    def _if(self, frame: Frame, node: ast.If) -> Names | None:
        known = expressions.truth(self, expressions.evaluate(self, frame, node.test))
        if known is not None:
            return self.block(frame, node.body if known else node.orelse, frame.names)
        before = frame.names
        ways: list[Names | None] = []
        with self.undecided():
            for way in (node.body, node.orelse):
                try:
                    ways.append(self.block(frame, way, dict(before)))
                except Missing:  # it raises, as no call does that is replayed
                    self.raises += 1
        return _joined(*ways)

    def _for(self, frame: Frame, node: ast.For) -> Names | None:
        source = expressions.evaluate(self, frame, node.iter)
        items = attributes.iterate(self, source)
        frame.breaks.append([])
        frame.continues.append([])
        if items is not None:
            names: Names | None = frame.names
            for item in items:
                if names is None:
                    break
                frame.names = names
                stores.store(self, frame, node.target, item)
                names = _joined(self.block(frame, node.body, frame.names), *frame.continues[-1])
                frame.continues[-1].clear()
        else:
            names = self._repeated(frame, node.body, lambda: stores.store(self, frame, node.target, attributes.element(self, source)))
        return self._after_loop(frame, names, node.orelse)

    def _while(self, frame: Frame, node: ast.While) -> Names | None:
        frame.breaks.append([])
        frame.continues.append([])

        def test() -> None:
            expressions.truth(self, expressions.evaluate(self, frame, node.test))

        names = self._repeated(frame, node.body, test)
        return self._after_loop(frame, names, node.orelse)

    def _repeated(self, frame: Frame, body: list[ast.stmt], start: Any) -> Names | None:
        """A loop that runs any number of times: followed until what is known at its start doesn't change any more."""
        names = frame.names
        for _ in range(20):
            frame.names = dict(names)
            with self.undecided():
                start()
                after = _joined(names, self.block(frame, body, frame.names), *frame.continues[-1])
            frame.continues[-1].clear()
            assert after is not None
            if _same(names, after):
                break
            names = after
        return names

    def _after_loop(self, frame: Frame, names: Names | None, orelse: list[ast.stmt]) -> Names | None:
        frame.continues.pop()
        breaks = frame.breaks.pop()
        return _joined(self.block(frame, orelse, names), *breaks)

    def _break(self, frame: Frame, node: ast.Break) -> None:
        frame.breaks[-1].append(frame.names)

    def _continue(self, frame: Frame, node: ast.Continue) -> None:
        frame.continues[-1].append(frame.names)

    def _with(self, frame: Frame, node: ast.With) -> Names | None:
        for item in node.items:
            self._manager(frame, item.context_expr)
            if item.optional_vars is not None:
                stores.store(self, frame, item.optional_vars, Either())
        return self.block(frame, node.body, frame.names)

    def _manager(self, frame: Frame, node: ast.expr) -> None:
        """Only managers are followed that set a mode of PyTorch's and set it back."""
        if isinstance(node, ast.Call):
            manager = expressions.evaluate(self, frame, node.func)
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                calls.read(self, expressions.evaluate(self, frame, argument))
            if isinstance(manager, Known) and isinstance(manager.object, Hashable) and manager.object in managers():
                return
        else:
            manager = expressions.evaluate(self, frame, node)
            if isinstance(manager, Known) and type(manager.object) in managers():
                own = getattr(manager.object, "__dict__", None)
                if own:
                    self.guards.whole(own, f"{manager.path}.")
                return
        raise self.refuse(
            frame, node, f"`with {ast.unparse(node)}`: what it does when it begins and ends is not known. Enter it around the step"
        )

    def _try(self, frame: Frame, node: ast.Try) -> Names | None:
        if node.handlers:
            raise self.refuse(frame, node, "an exception is caught: which way it goes can't be told beforehand. Catch it around the step")
        inner = [each for statement in (*node.body, *node.orelse) for each in ast.walk(statement)]
        if any(isinstance(each, (ast.Return, ast.Break, ast.Continue, ast.Raise)) for each in inner):
            raise self.refuse(frame, node, "a `try` is left before its end. Return after it")
        names = self.block(frame, node.body, frame.names)
        names = self.block(frame, node.orelse, names)
        return self.block(frame, node.finalbody, names)


def _joined(*ways: Names | None) -> Names | None:
    """The names after one of several ways; a way that is None isn't left by its end."""
    left = [way for way in ways if way is not None]
    if not left:
        return None
    result = left[0]
    for way in left[1:]:
        result = {name: join(result[name], way[name]) if name in result and name in way else Either() for name in {**result, **way}}
    return result


def _same(a: Names, b: Names) -> bool:
    return a.keys() == b.keys() and all(_alike(a[name], b[name]) for name in a)


def _alike(a: Value, b: Value) -> bool:
    if a is b or (isinstance(a, Either) and isinstance(b, Either)):
        return True
    if isinstance(a, Known) and isinstance(b, Known):
        return a.same(b)
    return isinstance(a, New) and isinstance(b, New) and a.type is b.type and a.items is None and b.items is None


def _own(function: ast.FunctionDef) -> Iterable[ast.AST]:
    """The nodes of a function, without those of functions inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.Lambda, ast.GeneratorExp)):
            waiting.extend(ast.iter_child_nodes(node))


def _as_load(target: ast.expr) -> ast.expr:
    loaded: Any = copy.copy(target)
    loaded.ctx = ast.Load()
    return loaded


def follow(function: Any, args: list[Value], kwargs: dict[str, Value]) -> Guards:
    """The guards under which a call of the function with such arguments is the same again.

    Raises ``NotReplayable``, with the user's line, where there are none.
    """
    guards = Guards()
    guards.count(guards.of_class(torch.Tensor), "torch.Tensor")  # what is put there takes the place of PyTorch's own
    walk = Walk(guards)
    try:
        result = calls.call(walk, Known(function, getattr(function, "__qualname__", "the step")), args, kwargs)
    except RecursionError:
        raise NotReplayable("the step is nested too deep to be followed. Compile a part of it") from None
    with walk.undecided():
        while walk.waiting:  # whoever has such a generator may ask
            walk.waiting[0]()
    try:
        _check_returned(result)
    except NotReplayable as error:
        error.locate(*guards.returned())
        raise
    if walk.scaling:
        raise NotReplayable("a GradScaler is left in the middle of its round: call its update() in the step too")
    return guards


def _check_returned(value: Value) -> None:
    """What is returned must be made anew by a replay, or be a tensor: no container or object from outside, whose content may change."""
    if isinstance(value, New):
        if not value.owned or value.type is types.GeneratorType or (value.type in (list, dict, set) and value.items is None):
            raise NotReplayable(
                "the step returns a container of which the content is not known. Make it of elements and keys that the code shows"
            )
        for item in value.items.values() if isinstance(value.items, dict) else value.items or ():
            _check_returned(item)
    elif isinstance(value, Known) and reasons.is_numpys(value.object):
        raise NotReplayable(f"the step returns what is NumPy's: {reasons.unfit(value)}")
    elif not (isinstance(value, Known) and (plain(value.object) or isinstance(value.object, torch.Tensor))):
        raise NotReplayable(f"the step returns {value}, which lies outside of it and may change. Return its tensors and numbers")
