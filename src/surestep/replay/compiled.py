"""``surestep.compile``: a step whose calls are one program each, and are replayed where they are proven to be the same again."""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Callable, Mapping
from typing import Any, overload

from surestep import settings
from surestep.loop.boundaries import boundary, closures_wait
from surestep.observe import events, frames
from surestep.observe.events import Cause
from surestep.replay.binding import Entry
from surestep.replay.capture import Watch
from surestep.replay.guards import Guards
from surestep.replay.plan import Plan, modes, refuse_modes
from surestep.replay.scope import Scope, inside
from surestep.replay.signature import Arguments, as_values, described
from surestep.replay.values import NotReplayable
from surestep.replay.walk import follow
from surestep.tensor import devices
from surestep.trace.recorder import LOCK, Recorder

_PLANS = 8  # proven calls that are kept for one signature
_TRIES = 4  # proofs that may fail for one signature before it is left at recording
_PAUSE = 50  # calls until the next proof is tried; doubled each time
_MISSES = 8  # calls in a row whose guards may fail
_WAITING = 4  # calls of one signature that wait for their like
_SIGNATURES = 64  # that may fail before no other is tried
_NEW = 16  # signatures that are proven when they first come; others when they come again
_PROGRAMS = 1_000  # that are told apart


class Failed:
    """Proofs that failed for one signature, and for how many calls the next isn't tried."""

    def __init__(self) -> None:
        self.count = 0
        self.rest = 0
        self.pause = _PAUSE


class CompiledFunction:
    """A function whose calls are one program each. Made by :func:`compile`."""

    def __init__(self, function: Callable[..., Any], name: str, full_graph: bool, limit: int | None, options: Mapping[str, Any] | None):
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.name = name
        self.scope = Scope(name, full_graph, options)
        self.limit = limit
        self.plans: dict[tuple, list[Plan]] = {}
        self.waiting: dict[tuple, list[Plan]] = {}  # recorded once; to be compared with the next call for which they hold
        self.failures: dict[tuple, Failed] = {}
        self.programs: dict[Any, tuple[tuple, frames.Line | None]] = {}  # by place in the trie: the first call's signature
        self.recorded = 0
        self.missed = 0  # calls in a row for which no plan held
        self.changed: str | None = None
        self.last: NotReplayable | None = None
        self.told = False
        self.seen: set[tuple] = set()
        self.fresh = 0  # signatures that were new

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<compiled {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Replays the step, or runs its Python and records it."""
        if inside():
            return self.function(*args, **kwargs)  # part of the step around it
        arguments = Arguments(args, kwargs)
        plans = self.plans.get(arguments.key)
        if plans is not None:
            with LOCK:  # what a plan looked at must not be given to another thread's program meanwhile
                for recorder in devices.started():
                    if recorder.count or closures_wait():
                        boundary(Cause.STEP_ENTRY)  # whose closures may change what the guards look at
                for plan in plans:
                    inputs = self._ready(plan, arguments)
                    if inputs is not None:
                        self.missed = 0
                        if settings.on("SURESTEP_VERIFY_REPLAY"):
                            return self._verified(plan, arguments, args, kwargs)
                        made = plan.run(arguments, inputs)
                        break
                else:
                    plan, made = None, []
            if plan is not None:
                return plan.finish(made)
            self._missed(arguments)
        return self._record(arguments, args, kwargs)

    def _ready(self, plan: Plan, arguments: Arguments) -> Any:
        """The program's inputs, if the plan holds."""
        self.changed = plan.changed()
        if self.changed is not None:
            return None
        return plan.inputs(arguments)

    def _missed(self, arguments: Arguments) -> None:
        """No plan holds. What changes at each call isn't proven again and again."""
        self.missed += 1
        reason = self.changed or "its tensors lie otherwise in memory than they did"
        self.last = NotReplayable(reason)
        if self.missed >= _MISSES:
            self._give_up(arguments, NotReplayable(f"{reason}, and so at each call"))

    # Recording

    def _record(self, arguments: Arguments, args: tuple, kwargs: dict[str, Any]) -> Any:
        if len(self.failures) > _SIGNATURES or self._restless(arguments) or self._resting(arguments):
            self.waiting.pop(arguments.key, None)
            return self._plain(arguments, args, kwargs)
        try:
            with LOCK:  # Python's parser isn't safe in several threads
                refuse_modes()
                guards = follow(self.function, *as_values(args, kwargs))
            mode = modes()
        except NotReplayable as error:
            self._failed(arguments, error)
            return self._plain(arguments, args, kwargs)
        recorder = _recorder(arguments)
        with self.scope.entered():
            waiting = self._awaited(arguments)
            before = Entry(guards)
            watch = Watch(devices.recorders(), recorder)
            with watch:
                result = self.function(*args, **kwargs)
            before.let_go()
            plan = self._bound(guards, arguments, before, watch, waiting, result, mode)
            recorder.ran = None
            self._limited(recorder, arguments)
        if plan is not None:
            self._settle(plan, waiting, recorder, arguments)
        self.recorded += 1
        return result

    def _awaited(self, arguments: Arguments) -> Plan | None:
        """The earlier call that this one is to be like: the last one whose guards hold. Micro-batches of several kinds take turns."""
        plans = self.waiting.get(arguments.key, [])
        found = next((plan for plan in plans if plan.changed() is None), None)
        if found is not None:
            plans.remove(found)
            found.expected = found.inputs(arguments)
        elif len(plans) >= _WAITING:
            self._failed(arguments, NotReplayable(plans[0].changed() or "it changes at each call"))
        return found

    def _bound(
        self, guards: Guards, arguments: Arguments, before: Entry, watch: Watch, waiting: Plan | None, result: Any, mode: tuple
    ) -> Plan | None:
        try:
            try:
                taken = watch.taken()
                plan = Plan(watch.recorder, guards, arguments, before, taken, result, mode)
            except NotReplayable:
                if arguments.key not in self.failures:
                    raise  # a first call makes what stays, such as an optimizer's state: that the next one doesn't make anew
                gc.collect()  # what hangs in reference cycles is nobody's output
                taken = watch.taken()
                plan = Plan(watch.recorder, guards, arguments, before, taken, result, mode)
            if waiting is not None and waiting.expected is not None:
                what = waiting.differs(arguments, before, taken, result)
                plan.same = what is None
                plan.pin(waiting)
                if what is not None:
                    raise NotReplayable(f"the same call did something else the second time: {what}")
            return plan
        except NotReplayable as error:
            self._failed(arguments, error)
            return None

    def _settle(self, plan: Plan, waiting: Plan | None, recorder: Recorder, arguments: Arguments) -> None:
        """After the program was run: a call that did twice the same is replayed from now on."""
        program = recorder.ran
        if program is None:
            self._failed(arguments, NotReplayable("it computes nothing on the device"))
            return
        if program not in plan.place.programs.values():
            self._failed(arguments, NotReplayable("another thread uses the device meanwhile"))
            return
        try:
            plan.ready(program)
        except (NotReplayable, KeyError) as error:
            self._failed(arguments, error if isinstance(error, NotReplayable) else NotReplayable("its program has other outputs"))
            return
        if waiting is not None and plan.same:
            while len(self.plans) >= _SIGNATURES and arguments.key not in self.plans:
                self.plans.pop(next(iter(self.plans)))
            kept = self.plans.setdefault(arguments.key, [])
            kept.insert(0, plan)
            del kept[_PLANS:]
            self.failures.pop(arguments.key, None)
            self.last, self.missed = None, 0
        else:
            if len(self.waiting) >= _SIGNATURES and arguments.key not in self.waiting:
                self.waiting.clear()
                self._failed(arguments, NotReplayable("its arguments are others at each call"))
            plans = self.waiting.setdefault(arguments.key, [])
            plans.insert(0, plan)
            del plans[_WAITING:]

    def _plain(self, arguments: Arguments, args: tuple, kwargs: dict[str, Any]) -> Any:
        recorder = _recorder(arguments)
        with self.scope.entered():
            result = self.function(*args, **kwargs)
            self._limited(recorder, arguments)
        self.recorded += 1
        return result

    def _restless(self, arguments: Arguments) -> bool:
        """Whether the arguments are others at each call: then only a signature that comes again is worth a proof."""
        if arguments.key in self.seen:
            return False
        if len(self.seen) >= _SIGNATURES:
            self.seen.clear()
        self.seen.add(arguments.key)
        self.fresh += 1
        if self.fresh > _NEW:
            self.last = NotReplayable("its arguments are others at each call: a number that changes is passed as a tensor")
            return True
        return False

    def _resting(self, arguments: Arguments) -> bool:
        """Whether no proof is tried at this call: after some that failed, the next is tried much later."""
        failed = self.failures.get(arguments.key)
        if failed is None or failed.count < _TRIES:
            return False
        failed.rest -= 1
        return failed.rest > 0

    def _failed(self, arguments: Arguments, error: NotReplayable) -> None:
        """A proof failed. It is tried some times: a first step makes what later ones find."""
        self.last = error.alone()
        failed = self.failures.setdefault(arguments.key, Failed())
        failed.count += 1
        if failed.count >= _TRIES:
            self._give_up(arguments, error)
        elif len(self.failures) > _SIGNATURES:
            self._give_up(arguments, NotReplayable("its arguments are others at each call"))

    def _give_up(self, arguments: Arguments, error: NotReplayable) -> None:
        self.last = error.alone()
        failed = self.failures.setdefault(arguments.key, Failed())
        failed.count, failed.rest, failed.pause = _TRIES, failed.pause, 2 * failed.pause
        if not self.told:
            self.told = True
            line = frames.Line(error.file, error.line, self.name) if error.file else _first_line(self.function)
            events.emit("not_replayed", line, function=self.name, reason=error.reason)

    def _limited(self, recorder: Recorder, arguments: Arguments) -> None:
        """Counts the programs, and raises where there are more than the user allowed."""
        place = recorder.place
        if place in self.programs or not recorder.count:
            return
        if self.limit is not None and len(self.programs) >= self.limit:
            before, line = list(self.programs.values())[-1]
            why = described(before, arguments.key)
            if before == arguments.key:
                what = _first_difference(list(self.programs)[-1], place)
                why = f"with the same arguments it recorded other operations than before (last at {line}): {what}"
            raise RuntimeError(f"{self.name} would need more than max_different_graphs={self.limit} programs: {why}")
        if len(self.programs) < _PROGRAMS:
            self.programs[place] = (arguments.key, frames.user_line())

    def _verified(self, plan: Plan, arguments: Arguments, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Runs the Python instead of the replay, and holds what it recorded against what the replay would have done."""
        with self.scope.entered():
            plan.expected = plan.inputs(arguments)
            before = Entry(plan.guards)
            watch = Watch(devices.recorders(), plan.recorder)
            with watch:
                result = self.function(*args, **kwargs)
            before.let_go()
            try:
                what = plan.differs(arguments, before, watch.taken(), result)
            except NotReplayable as error:
                what = str(error)
            if what is not None:
                raise RuntimeError(f"SURESTEP_VERIFY_REPLAY: a replay of {self.name} would have been wrong: {what}")
        return result


def _recorder(arguments: Arguments) -> Recorder:
    """The one that a call records on: its first tensor's device, or the current one."""
    return arguments.tensors[0]._storage.trace if arguments.tensors else devices.recorders()[devices.current()]


def _first_line(function: Any) -> frames.Line | None:
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return None if code is None else frames.Line(code.co_filename, code.co_firstlineno, code.co_name)


def _first_difference(one: Any, other: Any) -> str:
    for before, now in zip(one.records(), other.records(), strict=False):
        if before is not now and repr(before)[:200] != repr(now)[:200]:
            return f"{_operation(now)} where there was {_operation(before)}"
    return "one of them goes on longer"


def _operation(record: Any) -> str:
    return str(getattr(record, "operation", type(record).__name__.lower()))


@overload
def compile(
    f: None = None,
    full_graph: bool = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
    custom_compile_options: Mapping[str, Any] | None = None,
    num_different_graphs_allowed: int | None = None,
) -> Any: ...


@overload
def compile(
    f: Callable[..., Any],
    full_graph: bool = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
    custom_compile_options: Mapping[str, Any] | None = None,
    num_different_graphs_allowed: int | None = None,
) -> CompiledFunction: ...


def compile(
    f: Callable[..., Any] | None = None,
    full_graph: bool = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
    custom_compile_options: Mapping[str, Any] | None = None,
    num_different_graphs_allowed: int | None = None,
) -> Any:
    """Compiles a step: each call is one program, and where a call is proven to be the same again, its Python is not run.

    As a function (``step = compile(step)``), a decorator, with options or without, or a context manager (``with compile():``), which is a
    ``step()`` with these options.

    Args:
        f: A function, method or module: a part of a training step, or all of it.
        full_graph: An error where something inside would cut the program in two: a value read, an operation on the host, ``sync()``.
        name: What to call it in messages; the function's name if None.
        max_different_graphs: An error where more programs than this are needed, which names what differs.
        custom_compile_options: XLA's own options for these programs.
        num_different_graphs_allowed: The name of ``max_different_graphs`` in older releases of torch_xla.

    Raises:
        GraphBreak: with ``full_graph``, at the user's line.
        RuntimeError: with ``max_different_graphs``, before the program too many is built.
    """
    limit = max_different_graphs if max_different_graphs is not None else num_different_graphs_allowed
    if limit is not None and limit < 1:
        raise ValueError(f"max_different_graphs must be at least 1, not {limit}")
    if f is None:
        return _Block(name or "compile()", full_graph, limit, custom_compile_options)
    if isinstance(f, CompiledFunction):
        f = f.function
    if not callable(f):
        raise TypeError(f"compile() takes a function or a module, not {f!r}")
    called = name or getattr(f, "__name__", None) or type(f).__name__
    return CompiledFunction(f, called, full_graph, limit, custom_compile_options)


class _Block:
    """``compile(...)`` without a function: a decorator that is still to be given one, and a context manager."""

    def __init__(self, name: str, full_graph: bool, limit: int | None, options: Mapping[str, Any] | None):
        self.scope = Scope(name, full_graph, options)
        self.limit = limit
        self.options = options
        self.open: list[Any] = []

    def __call__(self, function: Callable[..., Any]) -> CompiledFunction:
        called = self.scope.name if self.scope.name != "compile()" else getattr(function, "__name__", type(function).__name__)
        return CompiledFunction(function, called, self.scope.full_graph, self.limit, self.options)

    def __enter__(self) -> None:
        self.open.append(self.scope.entered())
        self.open[-1].__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self.open.pop().__exit__(*error)
