"""Convolutions in float32 as products of matrices: every window is a row, what is summed up is all that it covers.

Place: called by the rule of convolutions. Only targets with products of several sums take them (``Target.objection``).
Before and after, for windows of ``kernel`` points::

    y[n, o, h, w] = sum over c, i, j of image[n, c, s h + i - p, s w + j - p] * weight[o, c, i, j]
    padded[n, c, h, w] = image[n, c, h - p, w - p], or 0 in the padding
    y[n, o, h, w] = dot over i, j, c of padded[n, c, s h + i, s w + j] * weight[o, c, i, j]

Invariants: a product reads elements as they lie in memory, so that what is padded, or computed, is written first.
Non-goals: choosing layouts; 16 bits (``image_products``); groups; more than two dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr
from mixbackend.backends.codegen.ir.templates import is_place
from mixbackend.backends.codegen.lower.broadcast import read
from mixbackend.backends.codegen.lower.image_products import check_channels
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.padding import framed
from mixbackend.backends.codegen.lower.products import in_memory
from mixbackend.backends.codegen.lower.rules import RefusedError
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.backends.codegen.lower.windows import StridedWindows


def window_product(
    lowering: Lowering, image: Tensor, weight: Tensor, bias: Tensor | None, axes: Sequence[StridedWindows]
) -> Tensor:
    """Windows times the weight.

    Args:
        axes: one per dimension of the windows.

    Raises:
        RefusedError: another type, or a convolution of nothing.
    """
    _check(image, weight, bias)
    padded, weight = _padded(lowering, image, axes), in_memory(lowering, weight)
    rank = len(axes)

    def value(index: Index, inner: Index) -> Expr:
        taps, channel = inner[:rank], inner[rank]
        places = zip(axes, index[2:], taps, strict=True)
        window = tuple(place * axis.stride + tap * axis.dilation for axis, place, tap in places)
        return padded.at((index[0], channel, *window)) * weight.at((index[1], channel, *taps))

    sizes = lowering.output_sizes
    (made,) = lowering.reduce("dot", sizes, (*weight.sizes[2:], weight.sizes[1]), value, (torch.float32,))
    if bias is None:
        return made
    return lowering.map(sizes, image.dtype, lambda index: made.at(index) + read(bias, (index[1],), image.dtype))


def _check(image: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if any(item is not None and item.dtype != torch.float32 for item in (image, weight, bias)):
        raise RefusedError("dtype", f"a convolution of {image.dtype} and {weight.dtype}")
    if not 3 <= image.rank <= 4:
        raise RefusedError("rank", f"a convolution over {image.rank - 2} dimensions")
    check_channels(image, weight)


def _padded(lowering: Lowering, image: Tensor, axes: Sequence[StridedWindows]) -> Tensor:
    """The image as it lies in memory, with its padding."""
    if any(axis.padding for axis in axes):
        front = (0, 0, *(axis.padding for axis in axes))
        sizes = [size + 2 * amount for size, amount in zip(image.sizes, front, strict=True)]
        return framed(lowering, image, tuple(map(sympy.Integer, front)), sizes, Constant(image.dtype, 0.0))
    loops = lowering.loops(image.sizes)
    is_placed = is_place(image.at(tuple(loop.index for loop in loops)), loops)
    return image if is_placed else lowering.map(image.sizes, image.dtype, image.at)
