"""Recording an operation: the path that every operation takes, and the one that must be cheap.

The key of a call is made from its operands; a call seen before at this place of the trace is one dictionary look-up. Only a new one asks
PyTorch what it gives.
"""

from __future__ import annotations

from typing import Any
from weakref import ref as weak

import torch

from surestep.lower.table import NotLowered
from surestep.observe.events import Cause
from surestep.tensor import custom, mixed
from surestep.tensor import generator as generators
from surestep.tensor.devices import recorder as recorder_for
from surestep.tensor.devices import started
from surestep.tensor.infer import check_overlap, on_meta
from surestep.tensor.mixed import Mixed
from surestep.tensor.operation import FACTORY, NOT_LOWERED, Operation, name_of
from surestep.tensor.stand_ins import tensors
from surestep.tensor.xla_tensor import XlaTensor, fresh, put_back_hooks
from surestep.trace.layout import Layout, flat, layout, of_tensor
from surestep.trace.operands import (
    DEFAULT,
    FLOAT,
    KEYWORD,
    LIFTED_FLOAT,
    LIFTED_INT,
    LIST,
    HostScalar,
    Ref,
    add_constant,
    ref,
)
from surestep.trace.recorder import LOCK, Recorder
from surestep.trace.records import Call
from surestep.trace.storage import Storage
from surestep.trace.trie import Edge


def handler(operation: Operation) -> Any:
    """What ``__torch_dispatch__`` calls for an operation that is lowered."""
    recorded = record_write if operation.overload._schema.is_mutable else record

    def handle(args: tuple, kwargs: dict) -> Any:
        try:
            return recorded(operation, args, kwargs)
        except BaseException as error:
            with LOCK:
                for recorder in started():
                    recorder.repair()
            if type(error) is Mixed:
                raise mixed.error(operation.overload, args, kwargs) from None
            if type(error) is not NotLowered:
                raise
        return _on_host(operation, args, kwargs)

    place = operation.generator
    if place is None:
        return handle
    return lambda args, kwargs: handle(args[:place], kwargs | {"generator": args[place]} if len(args) > place else kwargs)


def _on_host(operation: Operation, args: tuple, kwargs: dict) -> Any:
    """The lowering refused these operands. If PyTorch refuses them too, its error is the user's; else the host serves."""
    from surestep.tensor import host
    from surestep.tensor.on_cpu import ask_cpu

    ask_cpu(operation.overload, args, kwargs, kernels_too=True)
    dynamic = torch.Tag.dynamic_output_shape in operation.overload.tags
    return host.fallback(operation.overload, Cause.SHAPE if dynamic else Cause.FALLBACK)(args, kwargs)


def record(operation: Operation, args: tuple, kwargs: dict) -> Any:
    """Records a functional operation; returns its new tensors."""
    with LOCK:
        first: Any = args[0] if args else None
        recorder = first._storage.trace if type(first) is XlaTensor else _recorder_of(args, kwargs)
        if recorder.count >= recorder.limit:
            recorder.check_limit()
        edge = _recorded(operation, recorder, args, kwargs)
        results = edge.results
        if type(results) is Layout:
            storage = Storage(recorder, results, None, recorder.serial, edge.ref)
            recorder.written.append(weak(storage))
            return fresh(storage)
        return _several(operation, recorder, results, edge.ref.index)


def _several(operation: Operation, recorder: Recorder, results: tuple, index: int) -> Any:
    made = []
    for position, result in enumerate(results):
        if result is None:
            made.append(None)
            continue
        storage = Storage(recorder, result, None, recorder.serial, ref(index + position))
        recorder.written.append(weak(storage))
        made.append(fresh(storage))
    return made if operation.lists else tuple(made)


def record_write(operation: Operation, args: tuple, kwargs: dict) -> Any:
    """Records an in-place or ``out=`` operation: the functional one, and a write to each target."""
    with LOCK:
        first: Any = args[0] if args else None
        recorder = first._storage.trace if type(first) is XlaTensor else _recorder_of(args, kwargs)
        if recorder.count >= recorder.limit:
            recorder.check_limit()
        if operation.outs:
            if any(type(t) is XlaTensor and _shares(t, args) for t in map(kwargs.get, operation.outs)):
                check_overlap(operation.overload, args, kwargs)
        elif type(first) is XlaTensor and first._layout is not first._storage.layout and _shares(first, (*args[1:], *kwargs.values())):
            check_overlap(operation.overload, args, kwargs)
        edge = _recorded(operation, recorder, args, kwargs)
        if operation.in_place:  # the common case: `self` is written, and lies as before
            if type(first) is not XlaTensor:
                raise Mixed
            write(recorder, first, edge.ref)
            return first
        targets = [kwargs[t] if type(t) is str else args[t] for t in operation.targets]
        for position, (target, wanted) in enumerate(zip(targets, edge.results, strict=True)):
            if wanted is None or target is None:
                continue
            if type(target) is not XlaTensor:
                raise Mixed
            if operation.outs and target._layout.sizes != wanted.sizes:
                from surestep.tensor.metadata import resize_out

                resize_out(target, wanted)
            write(recorder, target, ref(edge.ref.index + position))
        if len(targets) == 1:
            return targets[0]
        return tuple(targets)


def _shares(target: XlaTensor, operands: tuple | list) -> bool:
    """Whether an operand lies where a write's target may lie, too."""
    storage = target._storage
    for a in operands:
        kind = type(a)
        if kind is XlaTensor:
            if a._storage is storage and target._layout.meets(a._layout):
                return True
        elif (kind is list or kind is tuple) and _shares(target, a):
            return True
    return False


def write(recorder: Recorder, target: XlaTensor, value: Ref) -> None:
    """The tensor's elements become an SSA value of its shape and dtype."""
    storage, view = target._storage, target._layout
    if view is storage.layout:
        recorder.define(storage, value)
    elif storage.unwritten and view.dense and view.numel == storage.layout.numel and view.dtype == storage.layout.dtype:
        storage.lie_as(view)  # never written before: the first who covers it whole says how it lies
        recorder.define(storage, value)
    else:
        recorder.write(storage, view, value)


def value_of(recorder: Recorder, tensor: XlaTensor) -> Ref:
    """The SSA value of a tensor's elements."""
    storage = tensor._storage
    if tensor._layout is storage.layout:
        return storage.ref if storage.serial == recorder.serial else recorder.enter(storage)
    value = recorder.value(storage)
    known = tensor._read
    if known is not None and known[0] == recorder.serial and known[1] is value:
        return known[2]
    found = recorder.read(storage, tensor._layout)
    tensor._read = (recorder.serial, value, found)
    return found


def _recorder_of(args: tuple, kwargs: dict) -> Recorder:
    for value in args:
        if type(value) is XlaTensor:
            return value._storage.trace
    for value in (*args, *kwargs.values()):
        if type(value) is XlaTensor:
            return value._storage.trace
        if isinstance(value, (list, tuple)):
            for item in value:
                if type(item) is XlaTensor:
                    return item._storage.trace
    return recorder_for(kwargs.get("device"))


def _recorded(operation: Operation, recorder: Recorder, args: tuple, kwargs: dict) -> Edge:
    """Follows (or makes) the edge of a call; returns it."""
    key: list[Any] = [operation]  # hashed by identity; PyTorch's overloads hash in Python
    host: list[Any] = []
    integral = True  # as far as is known: then what it gives may be of PyTorch's default dtype
    for a in args:
        kind = type(a)
        if kind is XlaTensor:
            storage, lies = a._storage, a._layout
            if storage.trace is not recorder:
                raise Mixed
            if lies.inexact:
                integral = False
            if lies is storage.layout:
                if storage.hooks is not None:
                    put_back_hooks(a)
                key.append(storage.ref if storage.serial == recorder.serial else recorder.enter(storage))
            else:
                key.append(value_of(recorder, a))
        elif kind is int or a is None:
            key.append(a)
        elif kind is float and a and a == a:
            key.append(FLOAT)
            key.append(a)
        else:
            _add(recorder, key, host, a)
    if kwargs:
        outs = operation.outs
        for name, a in kwargs.items():
            if name in FACTORY:
                continue
            key.append(KEYWORD)
            key.append(name)
            if name in outs:
                if type(a) is not XlaTensor or a._storage.trace is not recorder:
                    raise Mixed
                key.append(a._layout)
            else:
                _add(recorder, key, host, a)
    if integral:
        key.append(DEFAULT)
        key.append(torch.get_default_dtype())
    draw = generator = None
    if operation.random:
        generator = generators.of(recorder, kwargs.get("generator"))
        draw = recorder.seed(*generator.next())
        key += draw
    exact = tuple(key)
    edge = recorder.place.edges.get(exact)
    if edge is None:
        edge = _missing(operation, recorder, exact, args, kwargs, bool(host), draw)
    if host:
        for number in host:
            (recorder.floats if type(number) is float else recorder.ints).append(number)
    if generator is not None:
        generator.advance()
    recorder.place = edge.place
    recorder.count += edge.count
    return edge


def _add(recorder: Recorder, key: list[Any], host: list[Any], a: Any) -> None:
    """Appends an operand to a key: the kinds that are not common enough for the loop above."""
    kind = type(a)
    if kind is XlaTensor:
        if a._storage.trace is not recorder:
            raise Mixed
        key.append(value_of(recorder, a))
    elif kind is list or kind is tuple:
        key.append(LIST)
        key.append(len(a))
        for item in a:
            _add(recorder, key, host, item)
    elif isinstance(a, torch.Tensor):
        if a.device.type != "cpu" or a.ndim:
            raise Mixed
        key.append(HostScalar.of(a.dtype))
        number = a.item()
        host.extend(
            (number.real, number.imag) if isinstance(number, complex) else (float(number) if isinstance(number, float) else int(number),)
        )
    else:
        add_constant(key, a)


def _missing(operation: Operation, recorder: Recorder, exact: tuple, args: tuple, kwargs: dict, host: bool, draw: Any) -> Edge:
    """The edge of a call that was not seen at this place before."""

    def make(lift: bool) -> tuple[Call, Any]:
        from surestep.lower.body import body  # JAX is imported when it is first needed

        functional = operation.functional
        assert functional is not None  # only what has a lowering, which functional forms have, comes here
        figures: dict[Ref, tuple] = {}
        arguments = tuple(_argument(recorder, a, lift and position in operation.numbers, figures) for position, a in enumerate(args))
        keywords = {
            name: _argument(recorder, a, lift and name in operation.numbers, figures)
            for name, a in kwargs.items()
            if name not in NOT_LOWERED and name not in operation.outs
        }
        outputs, results = _inferred(operation, args, kwargs, lambda: custom.by_lowering(operation, arguments, keywords, figures))
        computed = _computed(operation, args, kwargs, outputs) if operation.targets else None
        traced = body(name_of(functional), arguments, keywords, figures, outputs, operation.single, computed)
        return Call(
            functional, arguments, keywords, outputs, operation.single, bool(operation.targets), draw, traced, len(outputs)
        ), results

    generic, scalars = (None, ()) if host else _generic(operation, recorder, args, kwargs)
    if scalars:
        return recorder.numbered(exact, (generic, draw, torch.get_default_dtype()), scalars, make)
    return recorder.exact(exact, lambda: make(False))


def _generic(operation: Operation, recorder: Recorder, args: tuple, kwargs: dict) -> tuple[Any, tuple]:
    """The call's key without its numbers, and the numbers."""
    key: list[Any] = [operation]
    scalars: list[Any] = []
    for place, a in (*enumerate(args), *kwargs.items()):
        if place in FACTORY:
            continue
        if place in operation.numbers and (type(a) is float or (type(a) is int and -(1 << 63) <= a < 1 << 63)):
            key.append(LIFTED_FLOAT if type(a) is float else LIFTED_INT)
            scalars.append(a)
        elif place in operation.outs:
            key.append(a._layout)
        else:
            if type(place) is str:
                key += (KEYWORD, place)
            _add(recorder, key, [], a)
    return tuple(key), tuple(scalars)


def _argument(recorder: Recorder, a: Any, lift: bool, figures: dict[Ref, tuple]) -> Any:
    """An operand as the record holds it; the figures of SSA values are noted."""
    if type(a) is XlaTensor:
        value = value_of(recorder, a)
        figures[value] = (a._layout.sizes, a._layout.dtype)
        return value
    if isinstance(a, torch.Tensor):
        return HostScalar.of(a.dtype)
    if isinstance(a, (list, tuple)):
        return [_argument(recorder, item, False, figures) for item in a]
    if lift and type(a) is float:
        return LIFTED_FLOAT
    if lift and type(a) is int:
        return LIFTED_INT
    return a


_known: dict[tuple, tuple[tuple[Layout | None, ...], Any]] = {}  # what calls give that make new tensors, by how their operands lie
_KNOWN = 20_000


def _inferred(operation: Operation, args: tuple, kwargs: dict, by_lowering: Any) -> tuple[tuple[Layout | None, ...], Any]:
    """The layouts of a call's results, flat, and what the trie keeps of them for the dispatcher.

    The layers of a model repeat calls on tensors that lie alike, of which PyTorch is asked once.
    """
    key = None if operation.targets or (operation.lowering is not None and operation.lowering.custom) else _lying(operation, args, kwargs)
    found = _known.get(key) if key is not None else None
    if found is None:
        found = _asked(operation, args, kwargs, by_lowering)
        if key is not None:
            if len(_known) >= _KNOWN:
                _known.clear()
            _known[key] = found
    return found


def _lying(operation: Operation, args: tuple, kwargs: dict) -> tuple | None:
    """A call's key with its tensors' layouts in place of their values; None where a number of the host is among them."""
    key: list[Any] = [operation, torch.get_default_dtype()]
    storages: dict[int, int] = {}  # which operands share one

    def add(value: Any) -> bool:
        if type(value) is XlaTensor:
            key.extend((value._storage.layout, value._layout, storages.setdefault(id(value._storage), len(storages))))
        elif isinstance(value, (list, tuple)):
            key.extend((LIST, len(value)))
            return all(map(add, value))
        elif isinstance(value, torch.Tensor):
            return False
        else:
            add_constant(key, value)
        return True

    for name, value in (*enumerate(args), *kwargs.items()):
        key.append(name)
        if name != "generator" and not add(value):
            return None
    return tuple(key)


def _asked(operation: Operation, args: tuple, kwargs: dict, by_lowering: Any) -> tuple[tuple[Layout | None, ...], Any]:
    if operation.lowering is not None and operation.lowering.custom:
        result, stand = custom.on_meta(operation, args, kwargs, by_lowering)
    else:
        result, stand = on_meta(operation.overload, args, kwargs)
    if operation.targets:
        written = [kwargs[t] if type(t) is str else args[t] for t in operation.targets]
        stood: list[Any] = [None if t is None else stand.of(t) for t in written]
        if operation.outs and any(s.shape != t._layout.sizes for s, t in zip(stood, written, strict=True)):
            # An `out=` tensor that has to grow gets the strides of a new result; meta's own resize doesn't know them.
            given = {name: value for name, value in kwargs.items() if name not in operation.outs}
            new, _ = on_meta(operation.functional, args, given)
            new = new if isinstance(new, (tuple, list)) else [new]
            stood = [torch.empty_strided(n.shape, n.stride(), dtype=s.dtype, device="meta") for n, s in zip(new, stood, strict=True)]
        elif not operation.outs:
            for s, t in zip(stood, written, strict=True):
                if s is not None and s.shape != t.shape:  # some of meta's kernels are written in Python, and resize it
                    raise RuntimeError(f"output with shape {list(t.shape)} doesn't match the broadcast shape {list(s.shape)}")
        results = tuple(None if s is None else layout(s.shape, s.stride(), 0, s.dtype) for s in stood)
        return tuple(None if s is None else _dense(s.shape, s.dtype) for s in stood), results
    if operation.single:
        found = _of_result(result)
        return (found,), found
    results = tuple(None if r is None else _of_result(r) for r in result)
    return results, results


def _computed(operation: Operation, args: tuple, kwargs: dict, outputs: tuple[Layout | None, ...]) -> tuple[torch.dtype | None, ...]:
    """The dtypes in which a write's results are computed: of pointwise operations, PyTorch's promoted one; else those of the targets."""
    assert operation.functional is not None
    given = {t._layout.dtype for t in tensors(args, kwargs)}
    if len(given) > 1 and torch.Tag.pointwise in operation.functional.tags and operation.single:
        natural, _ = on_meta(operation.functional, args, {name: a for name, a in kwargs.items() if name not in operation.outs})
        return (natural.dtype,)
    return tuple(None if out is None else out.dtype for out in outputs)


def _of_result(result: torch.Tensor) -> Layout:
    """A new tensor's layout: PyTorch's, where it covers its memory; no lowering makes one that has holes."""
    found = of_tensor(result)
    return found if found.dense else _dense(result.shape, result.dtype)


def _dense(sizes: tuple[int, ...], dtype: torch.dtype) -> Layout:
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(size, 1)
    return layout(tuple(sizes), tuple(reversed(strides)), 0, dtype)


def empty_storage(recorder: Recorder, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> tuple[Storage, Layout]:
    """A storage that was never written, and the layout of a tensor over it."""
    wanted = layout(sizes, strides, 0, dtype)
    return Storage(recorder, wanted if wanted.dense else flat(wanted.span, dtype)), wanted
