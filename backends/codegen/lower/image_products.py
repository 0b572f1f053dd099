"""Convolutions of one point as products of matrices: pixels are rows, what is summed up are channels.

Place: called by the rule of convolutions. Only targets that make products take them (``Target.objection``).
A bias is a map after the product, as in ``products``: schedules put it, and the activations, sums with a residual and
scales of channels that follow, into the product's kernel.
Invariants: images have their channels innermost, so that rows and what is summed up lie in memory as those of matrices
do; sums are made in float32 and rounded once, after the bias.
Non-goals: float32 (``window_products``); row-major images; groups; padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from mixbackend.backends.codegen.ir.scalar import Expr, compute_dtype
from mixbackend.backends.codegen.lower.broadcast import read
from mixbackend.backends.codegen.lower.formula import is_short
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.products import in_memory
from mixbackend.backends.codegen.lower.rules import RefusedError
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.contracts import TensorMeta, hint_of
from mixbackend.contracts.rate_rows import is_channels_last

_NO_RULE = "in 16 bits, no lowering rule for convolutions but depthwise ones and those of one point"


def image_product(
    lowering: Lowering,
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[Any],
    padding: Sequence[Any],
) -> Tensor:
    """Every pixel, or every one of a grid, times the weight.

    Raises:
        RefusedError: windows of more than one point, another layout or type.
    """
    _check(lowering, image, weight, bias, stride, padding)
    image, weight = in_memory(lowering, image), in_memory(lowering, weight)
    point = (sympy.Integer(0),) * (image.rank - 2)
    steps = [int(step) for step in stride]

    def value(index: Index, inner: Index) -> Expr:
        pixel = tuple(place * step for place, step in zip(index[2:], steps, strict=True))
        return image.at((index[0], inner[0], *pixel)) * weight.at((index[1], inner[0], *point))

    sizes, wide = lowering.output_sizes, compute_dtype(image.dtype)
    stored = image.dtype if bias is None else wide
    (made,) = lowering.reduce("dot", sizes, image.sizes[1:2], value, (stored,))
    if bias is None:
        return made
    return lowering.map(sizes, lowering.output_dtype, lambda index: made.at(index) + read(bias, (index[1],), wide))


def check_channels(image: Tensor, weight: Tensor) -> None:
    """Refuse images and weights of other channels, or of none.

    Raises:
        RefusedError: always in these cases.
    """
    if image.sizes[1] != weight.sizes[1]:
        raise RefusedError("dynamic-shape", f"whether {image.sizes[1]} is {weight.sizes[1]} depends on sizes")
    if any(size == 0 for tensor in (image, weight) for size in tensor.sizes):
        raise RefusedError("argument", "a convolution of nothing")


def _check(
    lowering: Lowering,
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[Any],
    padding: Sequence[Any],
) -> None:
    """Refuse all that is no product of a matrix of pixels."""
    numbers = [sympy.sympify(item) for item in (*weight.sizes[2:], *stride, *padding)]
    if not all(number.is_Integer for number in numbers):
        raise RefusedError("dynamic-shape", "the size, stride or padding of a window is no number")
    if any(size != 1 for size in weight.sizes[2:]) or any(number != 0 for number in padding):
        raise RefusedError("unknown-op", _NO_RULE)
    if not is_short(image.dtype) or any(item is not None and item.dtype != image.dtype for item in (weight, bias)):
        raise RefusedError("dtype", f"a convolution of one point of {image.dtype} and {weight.dtype}")
    check_channels(image, weight)
    assert lowering.view is not None
    metas = (lowering.view.tensor("input"), lowering.output)
    if not all(meta is not None and _has_innermost_channels(meta) for meta in metas):
        raise RefusedError("layout", "a convolution of one point on an image whose channels are not innermost")


def _has_innermost_channels(meta: TensorMeta) -> bool:
    """Images of one pixel have, in any layout."""
    return is_channels_last(meta) or (meta.contiguous() and all(hint_of(size) == 1 for size in meta.shape[2:]))
