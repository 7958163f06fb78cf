"""torch_xla.backends: the precision of float32 products, which is the full one here, on every platform."""

from __future__ import annotations

__all__ = ["get_mat_mul_precision", "set_mat_mul_precision"]


def get_mat_mul_precision() -> str:
    """``"highest"``"""
    return "highest"


def set_mat_mul_precision(precision: str) -> None:
    """Takes ``"highest"``, which products and convolutions of float32 have in any case.

    Raises:
        NotImplementedError: ``"high"`` or ``"default"``, which are fewer passes over bfloat16 on a TPU.
        ValueError: Another one.
    """
    if precision not in ("highest", "high", "default"):
        raise ValueError(f"set_mat_mul_precision takes 'highest', 'high' or 'default', not {precision!r}")
    if precision != "highest":
        raise NotImplementedError(
            f"set_mat_mul_precision({precision!r}): float32 is multiplied in full precision. Leave it out; to multiply in bfloat16, write "
            f"`with torch.autocast('xla'):` around the forward pass"
        )
