"""What a file does, as far as it can be read: functions, calls in order, and the loops, conditions and blocks around each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from surestep.lint import vocabulary as names
from surestep.lint.source import Source
from surestep.lint.values import (
    COMPILED,
    DEVICE_LOADER,
    MASTER,
    MAYBE,
    MODULE,
    OPTIMIZER,
    SCALER,
    UNKNOWN,
    XLA,
    Value,
    merged,
)


@dataclass(eq=False)
class Function:
    """A function of the file, or its module level (``node`` is then the module)."""

    name: str
    node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    parent: Function | None
    owner: Class | None = None
    params: dict[str, Value] = field(default_factory=dict)
    returned: Value = UNKNOWN
    variables: dict[str, Value] = field(default_factory=dict)
    decorators: list[Value] = field(default_factory=list)
    events: list[Call | Use] = field(default_factory=list)

    @property
    def calls(self) -> Iterator[Call]:
        """Its calls, in order."""
        return (event for event in self.events if isinstance(event, Call))


@dataclass(eq=False)
class Class:
    """A class of the file."""

    name: str
    node: ast.ClassDef
    bases: list[Value]
    methods: dict[str, Function] = field(default_factory=dict)
    attributes: dict[str, Value] = field(default_factory=dict)

    def method(self, name: str) -> Function | None:
        """A method of its own, or of a base in the file."""
        if name in self.methods:
            return self.methods[name]
        return next((found for cls in self.parents if (found := cls.method(name))), None)

    def attribute(self, name: str) -> Value | None:
        """What its objects hold under a name."""
        if name in self.attributes:
            return self.attributes[name]
        return next((found for cls in self.parents if (found := cls.attribute(name)) is not None), None)

    @property
    def parents(self) -> list[Class]:
        """Its bases in the file. One that names itself, by rebinding its name, is none."""
        return [cls for base in self.bases for cls in base.classes if cls.node.lineno < self.node.lineno]

    @property
    def tags(self) -> frozenset[str]:
        """What its objects are."""
        is_module = any((base.name or "").endswith("Module") for base in self.bases) or any(MODULE in cls.tags for cls in self.parents)
        return frozenset({MODULE} if is_module else ())


@dataclass(eq=False)
class Frame:
    """A loop, a condition or a ``with`` block around a call; for a loop, ``value`` is what is iterated over."""

    kind: str
    node: ast.AST
    value: Value


@dataclass(eq=False)
class Call:
    """A call, with what is known of all that is in it."""

    node: ast.Call
    function: Function
    frames: tuple[Frame, ...]
    callee: Value
    receiver: Value
    arguments: list[Value]
    keywords: dict[str, Value]
    targets: tuple[Function, ...]
    dropped: bool  # it is a statement: nobody uses the result
    result: Value = UNKNOWN

    @property
    def name(self) -> str | None:
        """The qualified name of what is called, if it was imported or is a builtin."""
        return self.callee.name

    @property
    def method(self) -> str | None:
        """The attribute that is called."""
        return self.node.func.attr if isinstance(self.node.func, ast.Attribute) else None

    def keyword(self, name: str) -> ast.expr | None:
        """The expression of a named argument."""
        return next((keyword.value for keyword in self.node.keywords if keyword.arg == name), None)

    def is_true(self, name: str) -> bool:
        """Whether a named argument is literally True."""
        given = self.keyword(name)
        return isinstance(given, ast.Constant) and given.value is True

    @property
    def has_stars(self) -> bool:
        """Whether ``*args`` or ``**kwargs`` may hold anything."""
        return any(k.arg is None for k in self.node.keywords) or any(isinstance(a, ast.Starred) for a in self.node.args)

    @property
    def loops(self) -> tuple[Frame, ...]:
        """The loops around it in its function, outermost first."""
        return tuple(frame for frame in self.frames if frame.kind == "loop")

    @property
    def by_rank(self) -> bool:
        """Whether a condition on the replica's number is around it."""
        return any(frame.kind == "if" and MASTER in frame.value for frame in self.frames)


@dataclass(eq=False)
class Use:
    """Anything else that rules ask for: ``truth`` of a value, ``format`` into a string, ``index`` of a value."""

    kind: str
    node: ast.expr
    function: Function
    frames: tuple[Frame, ...]
    value: Value
    index: list[tuple[ast.expr, Value]] = field(default_factory=list)

    @property
    def loops(self) -> tuple[Frame, ...]:
        """The loops around it in its function, outermost first."""
        return tuple(frame for frame in self.frames if frame.kind == "loop")


@dataclass(eq=False)
class TrainingLoop:
    """The innermost loop around an optimizer's step, however many calls are between them."""

    frame: Frame
    function: Function
    outer: tuple[Frame, ...]  # what is around the loop in its function
    steps: list[tuple[Call, tuple[Frame, ...]]] = field(default_factory=list)  # optimizer steps, with all frames from the loop to them


@dataclass(eq=False)
class Program:
    """A file after evaluation."""

    source: Source
    tree: ast.Module
    module: Function
    functions: list[Function]
    classes: list[Class]
    imported: set[str]  # every module that is imported, and every name from one
    resolved: dict[ast.expr, str]  # the qualified names of expressions

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node around each node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def assigned(self) -> set[str]:
        """Names that are bound otherwise than by imports (``None`` aside, the usual stand-in where an import fails)."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                parent = self.parents[node]
                if not (isinstance(parent, ast.Assign) and isinstance(parent.value, ast.Constant) and parent.value.value is None):
                    found.add(node.id)
        return found

    @cached_property
    def imports(self) -> list[tuple[str, ast.Import | ast.ImportFrom]]:
        """The names that imports bind, each with its statement."""
        return [
            (alias.asname or (alias.name if isinstance(node, ast.ImportFrom) else alias.name.partition(".")[0]), node)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        ]

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that an expression is in."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def alias(self, name: str) -> str | None:
        """What an imported thing is called at module level."""
        return next((alias for alias, value in self.module.variables.items() if value.name == name and alias.isidentifier()), None)

    @cached_property
    def calls(self) -> list[Call]:
        """All calls of the file."""
        return [call for function in self.functions for call in function.calls]

    @cached_property
    def callers(self) -> dict[Function, list[Call]]:
        """For each function, the calls that may reach it."""
        found: dict[Function, list[Call]] = {}
        for call in self.calls:
            for target in call.targets:
                found.setdefault(target, []).append(call)
        return found

    @cached_property
    def launches(self) -> list[Call]:
        """Calls that start a function in several processes. With one process they start none."""
        return [call for call in self.calls if call.name in names.LAUNCH and not _one_process(call)]

    @cached_property
    def alone(self) -> bool:
        """Whether what it launches is one process."""
        return not self.launches and any(call.name in names.LAUNCH for call in self.calls)

    @cached_property
    def launched(self) -> set[Function]:
        """Functions that run in started processes, those that are called from them included."""
        return self.reach([function for call in self.launches for value in call.arguments[:1] for function in value.functions])

    @cached_property
    def replicated(self) -> set[Function]:
        """Functions that run in several processes: those that are launched, and all of a script that joins a group itself, under
        ``torchrun``. Libraries that split the model reduce gradients in their own ways.
        """
        joined = [merged([*call.arguments[:1], call.keywords.get("backend", UNKNOWN)]) for call in self.calls if call.name in names.JOIN]
        joins = any(backend.text == "xla" for backend in joined)
        splits = any(module.partition(".")[0] in names.SPLITTING for module in self.imported)
        return set(self.functions) if joins and not splits else self.launched

    def reach(self, functions: list[Function]) -> set[Function]:
        """The functions and all that they call in this file."""
        found: set[Function] = set()
        waiting = list(functions)
        while waiting:
            function = waiting.pop()
            if function not in found:
                found.add(function)
                waiting.extend(target for call in function.calls for target in call.targets)
        return found

    def inside(self, frame: Frame, function: Function) -> list[Call | Use]:
        """All that happens in a loop (or a block), in functions that are called there too."""
        own = [event for event in function.events if frame in event.frames]
        called = self.reach([target for event in own if isinstance(event, Call) for target in event.targets])
        return own + [event for other in self.functions if other in called and other is not function for event in other.events]

    def by_rank(self, call: Call, seen: frozenset[Function] = frozenset()) -> bool:
        """Whether only some replicas come to a call: a condition on their number is around it, or around the one call of its function.

        Where there are several calls, the others may be those of the other replicas.
        """
        if self.alone:
            return False
        if call.by_rank:
            return True
        callers = self.callers.get(call.function, [])
        return len(callers) == 1 and call.function not in seen and self.by_rank(callers[0], seen | {call.function})

    @cached_property
    def is_eager(self) -> bool:
        """Whether the file switches recording off."""
        return any(call.name in names.EAGER and not _is_false(call.node) for call in self.calls)

    @cached_property
    def training_loops(self) -> list[TrainingLoop]:
        """Loops that train on the XLA device."""
        loops: dict[Frame, TrainingLoop] = {}
        for call in self.calls:
            if is_optimizer_step(call):
                for frame, function, between in self._loops_around(call, ()):
                    if frame not in loops:
                        outer = _before(function, frame)
                        loops[frame] = TrainingLoop(frame, function, outer)
                    loops[frame].steps.append((call, between))
        return [loop for loop in loops.values() if self._on_xla(loop)]

    def _loops_around(self, call: Call, seen: tuple[Function, ...]) -> Iterator[tuple[Frame, Function, tuple[Frame, ...]]]:
        """The innermost loops around a call: in its function, or in the functions that call that one."""
        for position in range(len(call.frames) - 1, -1, -1):
            if call.frames[position].kind == "loop":
                yield call.frames[position], call.function, call.frames[position + 1 :]
                return
        if call.function in seen:
            return
        for caller in self.callers.get(call.function, ()):
            extra = call.frames
            if COMPILED in caller.callee or any(value.name in names.STEP_OR_COMPILE for value in call.function.decorators):
                extra = (Frame("with", caller.node, Value(name="torch_xla.step")), *extra)
            for frame, function, between in self._loops_around(caller, (*seen, call.function)):
                yield frame, function, (*between, *extra)

    def _on_xla(self, loop: TrainingLoop) -> bool:
        trained = any(XLA in call.receiver or call.name in names.OPTIMIZER_STEP for call, _ in loop.steps)
        backward = [e for e in self.inside(loop.frame, loop.function) if isinstance(e, Call) and e.method == "backward"]
        on_device = any(XLA in call.receiver or MAYBE in call.receiver for call in backward)
        return bool(backward) and (trained or on_device)

    @cached_property
    def step_functions(self) -> set[Function]:
        """Functions that are called in a training loop."""
        found: set[Function] = set()
        for loop in self.training_loops:
            found |= {event.function for event in self.inside(loop.frame, loop.function)} - {loop.function}
        return found


def is_optimizer_step(call: Call) -> bool:
    """Whether an optimizer's parameters change here."""
    if call.name in names.OPTIMIZER_STEP:
        return True
    if call.method != "step" or not isinstance(call.node.func, ast.Attribute):
        return False
    if SCALER in call.receiver and call.node.args:
        return True
    return OPTIMIZER in call.receiver or (call.receiver.name is None and _called_optimizer(call.node.func.value))


def is_boundary(call: Call) -> bool:
    """Whether what was recorded runs here."""
    if call.name in names.SYNC or (call.method == "mark_step" and call.name is None):
        return True
    return call.name in names.OPTIMIZER_STEP and call.is_true("barrier")


def advances(call: Call) -> bool:
    """Whether it takes the next batch of a device loader by hand, which is a boundary too."""
    if call.name == "next":
        return any(DEVICE_LOADER in value for value in call.arguments[:1])
    return call.method in ("next", "__next__") and DEVICE_LOADER in call.receiver


def is_step_block(frame: Frame) -> bool:
    """Whether it is ``with torch_xla.step():``, or the call of a compiled step."""
    return frame.kind == "with" and frame.value.name in names.STEP


def makes_boundaries(frame: Frame) -> bool:
    """Whether it is a loop over a device loader."""
    return frame.kind == "loop" and DEVICE_LOADER in frame.value


def _called_optimizer(node: ast.expr) -> bool:
    last = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return last.lower().lstrip("_").startswith("optim") or last.lower() == "opt"


def _before(function: Function, frame: Frame) -> tuple[Frame, ...]:
    frames = next(event.frames for event in function.events if frame in event.frames)
    return frames[: frames.index(frame)]


def _one_process(call: Call) -> bool:
    given = call.keyword("nprocs")
    one = isinstance(given, ast.Constant) and given.value == 1
    return one or call.is_true("debug_single_process")


def _is_false(node: ast.Call) -> bool:
    return bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value is False
