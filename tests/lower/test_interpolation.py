"""Resized images and their gradients against CPU eager."""

from __future__ import annotations

import torch
from structured import Family

aten = torch.ops.aten
OPS = ("nn.functional.interpolate", "nn.functional.upsample_nearest", "nn.functional.upsample_bilinear", "_upsample_bilinear2d_aa")


def resized(name, spatial, sizes, *options, scales=()):
    """One way and back, for every size."""
    for size in sizes:
        x = torch.randn(2, 3, *spatial)
        result = getattr(aten, name)(x, list(size), *options, *scales)
        getattr(aten, f"{name}_backward")(torch.randn_like(result), list(size), list(x.shape), *options, *scales)


SIZES_2D = ((14, 12), (3, 13), (7, 4), (1, 1))
CASES = {
    "_upsample_bicubic2d_aa.default _upsample_bicubic2d_aa_backward.default": lambda: resized(
        "_upsample_bicubic2d_aa", (7, 6), SIZES_2D, False
    ),
    "_upsample_bicubic2d_aa.default aligned": lambda: resized("_upsample_bicubic2d_aa", (7, 6), SIZES_2D, True),
    "_upsample_lanczos2d_aa.default _upsample_lanczos2d_aa_backward.default": lambda: resized(
        "_upsample_lanczos2d_aa", (7, 6), SIZES_2D, False
    ),
    "_upsample_bilinear2d_aa.default _upsample_bilinear2d_aa_backward.default scaled": lambda: resized(
        "_upsample_bilinear2d_aa", (7, 6), ((3, 4),), False, scales=(0.5, 0.7)
    ),
    "upsample_nearest2d.default upsample_nearest2d_backward.default": lambda: resized("upsample_nearest2d", (7, 6), SIZES_2D),
    "upsample_nearest2d.default scaled": lambda: resized("upsample_nearest2d", (7, 6), ((11, 15),), scales=(1.7, 2.6)),
    "_upsample_nearest_exact2d.default _upsample_nearest_exact2d_backward.default": lambda: resized(
        "_upsample_nearest_exact2d", (7, 6), SIZES_2D
    ),
    "upsample_nearest3d.default upsample_nearest3d_backward.default": lambda: resized("upsample_nearest3d", (3, 4, 2), ((6, 5, 1),)),
    "_upsample_nearest_exact3d.default _upsample_nearest_exact3d_backward.default": lambda: resized(
        "_upsample_nearest_exact3d", (3, 4, 2), ((6, 5, 1),)
    ),
    "upsample_bilinear2d.default upsample_bilinear2d_backward.default": lambda: resized("upsample_bilinear2d", (7, 6), SIZES_2D, False),
    "upsample_bilinear2d.default aligned": lambda: resized("upsample_bilinear2d", (7, 6), SIZES_2D, True),
    "upsample_bilinear2d.default scaled": lambda: resized("upsample_bilinear2d", (7, 6), ((11, 15),), False, scales=(1.7, 2.6)),
    "upsample_bicubic2d.default upsample_bicubic2d_backward.default": lambda: resized("upsample_bicubic2d", (7, 6), SIZES_2D, True),
    # scales that leave a size as it is, or double it
    "upsample_nearest2d.default upsample_nearest2d_backward.default same": lambda: resized(
        "upsample_nearest2d", (4, 3), ((4, 6), (8, 3)), scales=(1.2, 2.3)
    ),
    "upsample_bilinear2d.default upsample_bilinear2d_backward.default same": lambda: resized(
        "upsample_bilinear2d", (4, 3), ((4, 6), (8, 3)), False, scales=(1.2, 1.3)
    ),
    "upsample_trilinear3d.default upsample_trilinear3d_backward.default same": lambda: resized(
        "upsample_trilinear3d", (4, 3, 2), ((4, 3, 5),), False, scales=(1.2, 1.3, 2.6)
    ),
    "_upsample_bilinear2d_aa.default _upsample_bilinear2d_aa_backward.default same": lambda: resized(
        "_upsample_bilinear2d_aa", (4, 3), ((4, 6), (8, 3)), False, scales=(1.8, 1.9)
    ),
    "_upsample_bicubic2d_aa.default _upsample_bicubic2d_aa_backward.default same": lambda: resized(
        "_upsample_bicubic2d_aa", (4, 3), ((4, 6), (8, 3)), False, scales=(1.8, 1.9)
    ),
    "upsample_linear1d.default upsample_linear1d_backward.default long": lambda: resized("upsample_linear1d", (1500,), ((3000,),), False),
}
BYTES = {
    f"{name}.default {'aligned' if aligned else 'bytes'} {channels}": lambda name=name, aligned=aligned, channels=channels: [
        getattr(aten, name)(torch.randint(0, 256, (2, channels, 9, 7), dtype=torch.uint8), list(size), aligned)
        for size in ((20, 18), (4, 3), (9, 12), (5, 7), (1, 2))
    ]
    for name in ("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa")
    for aligned in (False, True)
    for channels in (3, 5)
}
CASES |= BYTES
FAMILY = Family("interpolation", ops=OPS, cases=CASES)

test_samples, test_case, test_keys = FAMILY.tests()
