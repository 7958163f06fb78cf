"""XlaTensor: a PyTorch tensor without memory of its own. It knows a storage, and how it lies over it.

PyTorch's C++ holds its sizes, strides, offset and autograd state; the storage holds the value, which may not exist yet. Everything that
is done to a tensor arrives in ``__torch_dispatch__``.
"""

from __future__ import annotations

import threading
from typing import Any, cast

import torch

from surestep import _compat
from surestep.trace.layout import Layout, of_tensor
from surestep.trace.operands import Ref
from surestep.trace.storage import Storage

DEVICES: list[torch.device] = [torch.device("xla", index) for index in range(64)]


# What to do for each ATen overload, by its identity (PyTorch's overloads hash in Python, which costs as much as the rest of the way).
HANDLERS: dict[int, Any] = {}
_kept: list[Any] = []  # the overloads, so that their identities stay theirs


def handler_of(func: Any) -> Any:
    """The handler of an overload that comes for the first time."""
    from surestep.tensor.dispatch import handler_for

    _kept.append(func)
    handler = HANDLERS[id(func)] = handler_for(func)
    return handler


class _Thread(threading.local):
    ready = False

    def prepare(self) -> None:
        """Backward runs on the thread that calls it.

        PyTorch would start a thread a device at the first backward of the process, and count the devices then: too early, if that was
        before this device was registered, and our guard can only say one. The switch belongs to the thread; the end of
        ``inference_mode`` puts it back to what it was at the beginning.
        """
        _compat.set_multithreading_enabled(False)
        self.ready = not torch.is_inference_mode_enabled()


thread = _Thread()


class TensorFlatten:
    """``XlaTensor.__tensor_flatten__``. That there is such a method makes ``module.to('xla')`` swap the parameters' contents, so that an
    optimizer built before still holds them; and it gives ``torch.compile`` the figures to trace over.

    Where a module's parameters stay on the device (``module.float()``, a second ``module.to('xla')``), PyTorch can assign their data
    instead, which no living graph or view prevents: there the method seems to be missing, once. So it does for parametrizations, which
    then set the storage, as they do for other tensors: a swap would be refused, or break the graph, where one is alive.
    """

    def __get__(self, tensor: Any, kind: Any = None) -> Any:
        if tensor is None:
            return lambda tensor: (["_figures"], None)
        from surestep.tensor.moving import called_by

        if tensor.__dict__.pop("_stays", False) or called_by(_compat.PARAMETRIZES):
            raise AttributeError("__tensor_flatten__")
        return lambda: (["_figures"], None)


class Sharded:
    """What a tensor tells of how it lies over the devices, under SPMD (``torch_xla``'s ``XLAShardedTensor``)."""

    @property
    def global_tensor(self) -> Any:
        """The tensor itself, whose shape is the whole one."""
        return self

    @property
    def local_shards(self) -> list[Any]:
        """What each of this process's devices holds, as copies on the CPU: a list of ``XLAShard``."""
        from surestep.tensor.sharding import local_shards

        return local_shards(cast("XlaTensor", self))

    def load_local_shards_(self, shards: Any) -> None:
        """Puts new values in the place of those of ``local_shards``. ``RuntimeError`` where they don't fit."""
        from surestep.tensor.sharding import load_local_shards

        load_local_shards(cast("XlaTensor", self), shards)

    @property
    def sharding_spec(self) -> str:
        """As XLA writes it, ``'{devices=[2,1]0,1}'``; empty where nothing is known of it."""
        from surestep.tensor.sharding import sharding_spec

        return sharding_spec(cast("XlaTensor", self))

    @property
    def sharding_type(self) -> Any:
        """The ``ShardingType``; None where nothing is known of it."""
        from surestep.tensor.sharding import sharding_type

        return sharding_type(cast("XlaTensor", self))


class XlaTensor(Sharded, torch.Tensor):
    """A tensor on the xla device; made by ``fresh`` and ``alias``.

    What is overridden here are the methods that PyTorch answers in C++ from memory, which there is none of, without asking the dispatcher.
    """

    _storage: Storage
    _layout: Layout
    _read: tuple[int, Ref, Ref] | None = None  # (trace, storage's value) -> this view's value there
    _lies: tuple[Layout, torch.Tensor] | None = None  # a layout, and a `meta` tensor that lies so

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment] (a C function, which PyTorch takes too)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] (the base has a C function that stands for "none")
        cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if not thread.ready:
            thread.prepare()
        handler = HANDLERS.get(id(func)) or handler_of(func)
        return handler(args, kwargs or {})

    # `.data = other` changes sizes in C++ without a word to the dispatcher

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override] (the stub says attribute; it is a property in C too)
        """Another tensor over the same storage, that autograd doesn't see. When set, the tensor takes the other's storage and layout."""
        return _data.__get__(self)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        from surestep.tensor.metadata import set_data

        set_data(self, value)

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """As ``Tensor.backward``, on this thread also where it is the first that this thread does with the device."""
        if not thread.ready:
            thread.prepare()
        keeps = len(args) > 1 or kwargs.get("retain_graph") or kwargs.get("create_graph")
        if watched_roots is not None and self.grad_fn is not None and not keeps:
            watched_roots.append(self.grad_fn)
        super().backward(*args, **kwargs)

    @property
    def _figures(self) -> torch.Tensor:
        """A `meta` tensor that lies as this one does. Kept: Dynamo's guards take two of one address for one tensor."""
        layout, inner = self._lies or (None, None)
        if inner is None or layout is not self._layout:
            inner = torch.empty_strided(self._layout.sizes, self._layout.strides, dtype=self._layout.dtype, device="meta")
            self._lies = self._layout, inner
        vars(inner).update({mark: of for mark, of in vars(self).items() if mark.startswith("_dynamo_")})  # which sizes are to be symbols
        return inner

    __tensor_flatten__ = TensorFlatten()

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], context: Any, outer_size: Any, outer_stride: Any) -> torch.Tensor:
        from surestep.tensor.figures import stand_in

        return stand_in(inner["_figures"])

    def untyped_storage(self) -> torch.UntypedStorage:
        """A stand-in for the storage: its ``data_ptr()`` tells aliases, and is no address."""
        from surestep.tensor.metadata import storage_handle

        return storage_handle(self)

    def data_ptr(self) -> int:
        """No address; equal for two tensors exactly where they begin at the same element of the same storage."""
        return id(self._storage) + int(self.storage_offset()) * self.element_size()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        from surestep.tensor.host import representation

        return representation(self)

    def tolist(self) -> Any:
        """As ``Tensor.tolist``: one read of the value, where C++ would read element by element."""
        from surestep.tensor.host import to_cpu

        return to_cpu(self).tolist()

    def __format__(self, format_spec: str) -> str:
        return format(self.item(), format_spec) if self.dim() == 0 else object.__format__(self, format_spec)

    def set_(self, source: Any = None, *where: Any, **kwargs: Any) -> torch.Tensor:
        """As ``Tensor.set_``: the tensor lies over another's storage from now on."""
        # C++ would hand on its own storage object, which is none of our storages
        if isinstance(source, XlaTensor) and where:
            source = source.untyped_storage()
        return super().set_(*(() if source is None else (source, *where)), **kwargs)

    def numpy(self, *, force: bool = False) -> Any:
        """As for any device: only with ``force``, as a copy."""
        if not force:
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
            )
        return self.detach().cpu().resolve_conj().resolve_neg().numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As ``Tensor.to``; a parameter that a module moves off the device stays the same object."""
        from surestep.tensor.moving import off_device

        return off_device(self, lambda tensor: super().to(*args, **kwargs))

    def float(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """``to(torch.float32)``, for a module's parameters too."""
        return self.to(torch.float32, *args, **kwargs)

    def double(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """``to(torch.float64)``, for a module's parameters too."""
        return self.to(torch.float64, *args, **kwargs)

    def half(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """``to(torch.float16)``, for a module's parameters too."""
        return self.to(torch.float16, *args, **kwargs)

    def bfloat16(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """``to(torch.bfloat16)``, for a module's parameters too."""
        return self.to(torch.bfloat16, *args, **kwargs)

    def cpu(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As ``Tensor.cpu``; a parameter that a module moves stays the same object."""
        from surestep.tensor.moving import off_device

        return off_device(self, lambda tensor: super().cpu(*args, **kwargs))

    def __deepcopy__(self, memo: dict) -> torch.Tensor:
        from surestep.tensor.pickling import deep_copy

        return deep_copy(self, memo)

    def __copy__(self) -> torch.Tensor:
        from surestep.tensor.pickling import shallow_copy

        return shallow_copy(self)

    def __reduce_ex__(self, proto: Any) -> Any:
        from surestep.tensor.pickling import reduce

        return reduce(self, proto)

    def __dlpack__(self, **kwargs: Any) -> Any:
        from surestep.tensor.interchange import dlpack

        return dlpack(self, **kwargs)

    def __dlpack_device__(self) -> Any:
        from surestep.tensor.interchange import dlpack_device

        return dlpack_device(self)


watched_roots: list[Any] | None = None  # who wants to know from where backward ran puts a list here
_data: Any = torch.Tensor.data  # type: ignore[attr-defined] (the class has a descriptor; the stub knows the instance's only)
_make = _compat.make_wrapper


def fresh(storage: Storage) -> XlaTensor:
    """A tensor that is a whole storage, which no other tensor has yet."""
    layout = storage.layout
    tensor = _make(XlaTensor, layout.sizes, strides=layout.strides, dtype=layout.dtype, device=DEVICES[storage.trace.device])
    tensor._storage = storage
    tensor._layout = layout
    return tensor


def alias(storage: Storage, layout: Layout, base: torch.Tensor | None) -> XlaTensor:
    """A tensor over (a part of) a storage that ``base`` has too."""
    if base is not None and torch.is_inference_mode_enabled() and not base.is_inference():
        with torch.inference_mode(False):  # a view of a normal tensor is a normal one
            return alias(storage, layout, base)
    device = DEVICES[storage.trace.device]
    if layout.offset:
        tensor = _make(XlaTensor, layout.sizes, strides=layout.strides, storage_offset=layout.offset, dtype=layout.dtype, device=device)
    else:
        tensor = _make(XlaTensor, layout.sizes, strides=layout.strides, dtype=layout.dtype, device=device)
    if base is not None:
        _compat.share_storage(tensor, base)
    tensor._storage = storage
    tensor._layout = layout
    return tensor


def put_back_hooks(tensor: XlaTensor) -> None:
    """A parameter that ``module.to('xla')`` moved has lost the gradient hooks set before; at its first use they are put back."""
    owner, backward, after = tensor._storage.hooks
    if id(tensor) == owner and tensor.is_leaf and tensor.requires_grad:
        tensor._storage.hooks = None
        if backward:
            tensor._backward_hooks = backward
        if after:
            tensor._post_accumulate_grad_hooks = after


def refresh(tensor: XlaTensor) -> None:
    """After PyTorch changed the tensor's own sizes, strides or offset."""
    tensor._layout = of_tensor(tensor)
    tensor._read = None
