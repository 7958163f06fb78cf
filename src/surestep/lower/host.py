"""An operation that is PyTorch's own CPU kernel where a program runs on one CPU device, and its XLA form everywhere else.

Which of the two is settled when a program is compiled, since the same lowering serves programs of all kinds: XLA can't split a call over
devices, nor map it over an axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import batching, mlir

from surestep import settings
from surestep.execute import host_kernels

_call = Primitive("surestep_host_kernel")
_call.multiple_results = True


def call(kernel: host_kernels.Kernel, options: Sequence[Any], form: Callable[..., Sequence[Any]], *operands: Any) -> Sequence[Any]:
    """The results of ``form(*operands)``, which is the XLA form of ``kernel`` with these options, literals all."""
    closed = jax.make_jaxpr(form)(*operands)
    return _call.bind(*operands, text=host_kernels.said(kernel.__name__, options), form=closed)


def _in_xla(*operands: Any, text: str, form: Any) -> Sequence[Any]:
    return jaxpr_as_fun(form)(*operands)


def _on_the_cpu(context: mlir.LoweringRuleContext, *operands: Any, text: str, form: Any) -> Any:
    where = context.module_context.axis_context
    alone = isinstance(where, mlir.ShardingContext) and where.num_devices == 1
    if not alone or not settings.on("SURESTEP_HOST_KERNELS"):
        return mlir.lower_fun(_in_xla)(context, *operands, text=text, form=form)
    host_kernels.register()
    return jax.ffi.ffi_lowering(host_kernels.TARGET)(context, *operands, kernel=text)


def _mapped(operands: Sequence[Any], axes: Sequence[Any], *, text: str, form: Any) -> tuple[Sequence[Any], Sequence[int]]:
    results = jax.vmap(jaxpr_as_fun(form), in_axes=tuple(axes))(*operands)
    return results, [0] * len(results)


_call.def_impl(_in_xla)
_call.def_abstract_eval(lambda *operands, text, form: form.out_avals)
mlir.register_lowering(_call, mlir.lower_fun(_in_xla))
mlir.register_lowering(_call, _on_the_cpu, platform="cpu")
batching.primitive_batchers[_call] = _mapped
