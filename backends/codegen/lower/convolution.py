"""Rules of convolutions: depthwise ones, which sum few terms, are loops; others are products of matrices.

Place: registered by ``lower.table``. Products are made by ``window_products`` in float32, and by ``image_products`` of
one point in 16 bits; other groups, transposed convolutions and float64 stay with libraries.
Semantics: sums are taken in the compute type and rounded once, after the bias. Taps in the padding add zero; whether a
weight that is not finite meets them is left open, as torch's own kernels differ in it.
The weight is copied so that neighbouring channels are neighbours in memory: ``[taps, channels]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from mixbackend.backends.codegen.ir.scalar import Expr, compute_dtype
from mixbackend.backends.codegen.lower.access import added, addressable
from mixbackend.backends.codegen.lower.formula import is_short
from mixbackend.backends.codegen.lower.image_products import image_product
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.pooling import strided_windows, window_element
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.backends.codegen.lower.window_products import window_product
from mixbackend.backends.codegen.lower.windows import StridedWindows

_NO_RULE = "no lowering rule for transposed convolutions, nor for groups of several channels"

LARGEST_ROW = 16
"""Taps along the last dimension up to which they are written out; longer rows are a loop, as other dimensions are."""


@rule("aten.convolution.default")
def convolution(
    lowering: Lowering,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: Any,
) -> Tensor:
    """Sums over windows of one channel each, or over all channels of a window."""
    sizes, kernel = lowering.output_sizes, weight.sizes[2:]
    is_product = groups == 1 and not transposed and input.rank == weight.rank
    if is_product and is_short(input.dtype):
        return image_product(lowering, input, weight, bias, stride, padding)
    if not is_product:
        _check_depthwise(input, weight, transposed, groups)
    _check_known((kernel, stride, padding, dilation))
    axes = strided_windows(input, sizes, *(tuple(map(int, item)) for item in (kernel, stride, padding, dilation)))
    if is_product:
        return window_product(lowering, input, weight, bias, axes)
    source = addressable(lowering, input)
    turned = lowering.map(
        (*kernel, weight.sizes[0]), weight.dtype, lambda index: weight.at((index[-1], 0, *index[:-1])), apart=True
    )
    total = _total(lowering, source, turned, axes)

    def value(index: Index) -> Expr:
        return total.at(index) if bias is None else total.at(index) + bias.at((index[1],))

    return lowering.map(sizes, input.dtype, value)


def _total(lowering: Lowering, source: Tensor, turned: Tensor, axes: Sequence[StridedWindows]) -> Tensor:
    """Sums of products, not rounded: taps of the last dimension in one expression, the others as loops."""
    sizes, taps = lowering.output_sizes, [axis.kernel for axis in axes]
    row = range(taps[-1]) if taps[-1] <= LARGEST_ROW else None
    looped = taps if row is None else taps[:-1]
    wide = compute_dtype(source.dtype)

    def product(index: Index, place: Sequence[Any]) -> Expr:
        element = window_element(lowering, source, axes, index, place, 0)
        return element * turned.at((*place, index[1]))

    def terms(index: Index, place: Sequence[Any]) -> Expr:
        if row is None:
            return product(index, place)
        return added([product(index, (*place, number)) for number in row])

    if not looped:
        return lowering.map(sizes, wide, lambda index: terms(index, ()))
    (total,) = lowering.reduce("sum", sizes, looped, terms, (wide,))
    return total


def _check_depthwise(image: Tensor, weight: Tensor, transposed: bool, groups: Any) -> None:
    """Refuse all other convolutions."""
    if transposed or image.rank != weight.rank or not 3 <= image.rank <= 5:
        raise RefusedError("unknown-op", _NO_RULE)
    if not all(size == groups for size in (image.sizes[1], weight.sizes[0])) or weight.sizes[1] != 1 or groups == 1:
        raise RefusedError("unknown-op", _NO_RULE)
    if image.dtype != weight.dtype or not image.dtype.is_floating_point:
        raise RefusedError("dtype", f"a convolution of {image.dtype} and {weight.dtype}")


def _check_known(arguments: Sequence[Sequence[Any]]) -> None:
    """Refuse windows of a form that is not known when compiling, or that pad by less than nothing."""
    numbers = [sympy.sympify(number) for argument in arguments for number in argument]
    if not all(number.is_Integer for number in numbers):
        raise RefusedError("dynamic-shape", "the size, stride, padding or dilation of a window is no number")
    if any(number < 0 for number in numbers):
        raise RefusedError("argument", "a window with a negative padding")
