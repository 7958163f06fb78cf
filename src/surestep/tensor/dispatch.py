"""Which way an operation goes. Asked once an overload; the answer is kept in the table of handlers.

In this order: what surestep handles itself; views; in-place changes of metadata; what is lowered; lists of tensors, one
after the other; what PyTorch, or a custom operator's kernel for all devices, writes in terms of other operations; the host.
"""

from __future__ import annotations

from typing import Any

import torch

from surestep import _compat
from surestep.observe.events import Cause
from surestep.tensor import (
    bounds,
    copies,
    ctc,
    dual,
    host,
    indexing,
    likeness,
    linear,
    lists,
    metadata,
    normalization,
    packing,
    ranges,
    record,
    rrelu,
    scaling,
    solving,
    unrepresented,
    update,
    views,
)
from surestep.tensor.infer import check, on_meta
from surestep.tensor.operation import Operation
from surestep.tensor.xla_tensor import XlaTensor

_aten = torch.ops.aten

_OWN: dict[Any, Any] = {
    _aten.copy_.default: copies.copy_,
    _aten._to_copy.default: copies.to_copy,
    _aten.clone.default: copies.clone,
    _aten.empty.memory_format: copies.empty,
    _aten.empty_strided.default: copies.empty_strided,
    _aten.new_empty.default: copies.new_empty,
    _aten.new_empty_strided.default: copies.new_empty_strided,
    _aten.empty_like.default: copies.empty_like,
    _aten._local_scalar_dense.default: host.item,
    _aten.equal.default: host.equal,
    _aten.detach.default: views.detach,
    _aten.linear.default: linear.linear,
    _aten.zeros_like.default: likeness.handler(_aten.zeros_like.default, update.zeros_like),
    _aten.alias.default: views.detach,
    _aten._unsafe_view.default: views.handler(_aten.view.default),  # `kron(out=)` writes through it
    _aten.rrelu_with_noise.default: lambda args, kwargs: rrelu.rrelu_with_noise(*args, **kwargs),
    _aten.rrelu_with_noise_.default: lambda args, kwargs: rrelu.rrelu_with_noise_(*args, **kwargs),
    _aten.as_strided_copy.default: views.as_strided_copy,
    _aten.as_strided_scatter.default: lambda args, kwargs: views.as_strided_scatter(*args, **kwargs),
    **{
        func: ranges.handler(func)
        for func in (_aten.arange.default, _aten.arange.start, _aten.arange.start_step, _aten.arange.out, _aten.arange.start_out)
    },
    _aten.unsafe_split.Tensor: views.handler(_aten.split.Tensor),
    _aten.unsafe_split_with_sizes.default: views.handler(_aten.split_with_sizes.default),
    _aten._conj.default: views.physical(torch.conj_physical),
    _aten._neg_view.default: views.physical(torch.neg),
    _aten.resolve_conj.default: lambda args, kwargs: args[0],
    _aten.resolve_neg.default: lambda args, kwargs: args[0],
    _aten.lift.default: lambda args, kwargs: args[0],
    _aten.lift_fresh.default: lambda args, kwargs: args[0],
    _aten.is_pinned.default: lambda args, kwargs: False,
    _aten._has_same_storage_numel.default: dual.has_same_storage_numel,
    _aten._new_zeros_with_same_feature_meta.default: dual.zeros_like_primal,
    _aten.is_same_size.default: lambda args, kwargs: args[0].shape == args[1].shape,
    # TransformerEncoder asks whether a mask lets it use nested tensors
    _aten._nested_tensor_from_mask_left_aligned.default: lambda args, kwargs: False,
    _aten.record_stream.default: lambda args, kwargs: None,
    _aten.resize_.default: metadata.resize_,
    _aten.resize_as_.default: lambda args, kwargs: metadata.resize_((args[0], args[1].shape), kwargs),
    _aten._resize_output_.default: lambda args, kwargs: metadata.resize_(args[:2], {}),  # the third is the device
    _aten.set_.source_Tensor: metadata.set_tensor,
    _aten.set_.source_Tensor_storage_offset: metadata.set_tensor_part,
    _aten.set_.source_Storage: metadata.set_storage,
    _aten.set_.source_Storage_storage_offset: metadata.set_storage,
    _aten.set_.default: metadata.set_nothing,
    _aten.index.Tensor: indexing.index,
    _aten.index_put_.default: indexing.index_put_,
    _aten._index_put_impl_.default: indexing.index_put_,
    _aten.index_put.default: indexing.index_put,
    _aten.masked_select.default: indexing.masked_select,
    _aten.nonzero.default: indexing.nonzero,
    _aten._amp_foreach_non_finite_check_and_unscale_.default: scaling.unscale,
    _aten._amp_update_scale_.default: scaling.update_scale,
    _aten.ctc_loss.Tensor: ctc.reduced,  # in inference mode; else by the kernel that process.register gives
    _aten._ctc_loss.default: ctc.loss,
    _aten._ctc_loss.Tensor: ctc.loss,
    _aten._ctc_loss_backward.default: ctc.backward,
    _aten._ctc_loss_backward.Tensor: ctc.backward,
    _aten._linalg_check_errors.default: solving.check_errors,
    _aten._linalg_det.default: solving.det,
    _aten._linalg_slogdet.default: solving.slogdet,
    _aten._linalg_solve_ex.default: solving.solve_ex,
    _aten.cholesky.default: solving.cholesky,
    _aten._pack_padded_sequence.default: lambda args, kwargs: packing.pack_padded_sequence(*args, **kwargs),
    _aten.linalg_pinv.atol_rtol_tensor: lambda args, kwargs: solving.pinv(*args, **kwargs),
    _aten.polygamma_.default: lambda args, kwargs: torch.polygamma(args[1], args[0], out=args[0]),  # (n, x) where it is functional
    _aten.native_batch_norm.default: normalization.batch_norm,
    _aten._native_batch_norm_legit.default: normalization.batch_norm,
    _aten.native_batch_norm.out: normalization.batch_norm_out,
    _aten._native_batch_norm_legit.out: normalization.batch_norm_out,
    _aten.cudnn_batch_norm.default: normalization.batch_norm,
}


# Writing overloads of which meta has no kernel, though it has one of the functional form.
_WITHOUT_META = {
    _aten.geqrf.a: _aten.geqrf.default,
    _aten._native_batch_norm_legit.no_stats_out: _aten._native_batch_norm_legit.no_stats,
    _aten._scaled_mm.out: _aten._scaled_mm.default,
    _aten._scaled_mm_v2.out: _aten._scaled_mm_v2.default,
}


def handler_for(func: Any) -> Any:
    """The function (args, kwargs) -> result that serves this overload from now on."""
    handler = _way(func)
    return bounds.checked(func, handler) if bounds.ENABLED else handler


def _way(func: Any) -> Any:
    return _OWN.get(func) or likeness.handler(func, _general(func))


def _general(func: Any) -> Any:
    if func in _WITHOUT_META:
        return _through_functional(func, _WITHOUT_META[func])
    if torch.Tag.inplace_view in func.tags:
        return views.in_place(func)
    if func.is_view:
        return _composite(func) if _compat.has_composite_kernel(func) else unrepresented.refusal(func) or views.handler(func)
    operation = Operation(func)
    if operation.lowering is not None and not operation.lists_in:
        return record.handler(operation)
    looped = lists.handler(func) if func.name().startswith("aten::_foreach") else None
    if looped is not None:
        return looped
    if _compat.has_composite_kernel(func):
        return _composite(func)
    refusal = unrepresented.refusal(func)
    if refusal is not None:
        return refusal
    if _about_metadata(func):
        return lambda args, kwargs: on_meta(func, args, kwargs)[0]
    functional = operation.functional if func._schema.is_mutable else None
    if functional is not None and _rewritten(functional):
        return _through_functional(func, functional)
    decomposition = _compat.decomposition(func)
    if decomposition is not None:
        return lambda args, kwargs: decomposition(*args, **kwargs)
    if func.namespace != "aten" and _compat.has_explicit_kernel(func):
        return lambda args, kwargs: _compat.call_explicit_kernel(func, args, kwargs)
    dynamic = torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags
    return host.fallback(func, Cause.SHAPE if dynamic else Cause.FALLBACK)


def _rewritten(functional: Any) -> bool:
    return functional in _OWN or _compat.decomposition(functional) is not None or _compat.has_composite_kernel(functional)


def _about_metadata(func: Any) -> bool:
    """Whether it answers with numbers or truths that don't depend on values: sizes, strides."""
    returns = func._schema.returns
    values = torch.Tag.data_dependent_output in func.tags or func in _READ_VALUES
    return bool(returns) and not values and all(str(r.type) in ("bool", "int", "List[int]") for r in returns)


_READ_VALUES = {_aten.is_nonzero.default, _aten.equal.default, _aten._local_scalar_dense.default, _aten.is_set_to.default}


def _composite(func: Any) -> Any:
    """PyTorch writes it in terms of others; it arrives here only where autograd's layer was skipped (inference mode)."""

    def run(args: tuple, kwargs: dict) -> Any:
        return func.decompose(*args, **kwargs)

    return run


def _through_functional(func: Any, functional: Any) -> Any:
    """An in-place or ``out=`` operation whose functional form PyTorch decomposes: that, and a copy into the target."""
    operation = Operation(func)

    def run(args: tuple, kwargs: dict) -> Any:
        check(func, args, kwargs)
        given = {name: value for name, value in kwargs.items() if name not in operation.outs}
        result = functional(*args, **given)
        targets = [kwargs[t] if type(t) is str else args[t] for t in operation.targets]
        whole = targets[0] if len(targets) == 1 else tuple(targets)
        targets = [t for target in targets for t in (target if isinstance(target, (tuple, list)) else (target,))]
        for target, value in zip(targets, result if isinstance(result, (tuple, list)) else (result,), strict=True):
            if not torch.can_cast(value.dtype, target.dtype):
                raise RuntimeError(f"result type {value.dtype} can't be cast to the desired output type {target.dtype}")
            if operation.outs and target.shape != value.shape:
                metadata.resize_out(target, value._layout)
            copies.copy_((target, value), {})
        return whole if func._schema.returns else None

    return run


def boxed(func: Any, *args: Any, **kwargs: Any) -> Any:
    """What PyTorch calls for operations without an xla tensor among their operands: factories."""
    return XlaTensor.__torch_dispatch__(func, (), args, kwargs)
