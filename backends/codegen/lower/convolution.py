"""Rules of convolutions that sum few terms: depthwise ones.

Place: registered by ``lower.table``. All other convolutions are products of matrices and stay with libraries.
Semantics: sums are taken in float32 and rounded once, after the bias. Taps in the padding count as zero: a weight that
is not finite gives NaN only where it meets an element.
The weight is copied so that neighbouring channels are neighbours in memory: ``[taps, channels]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from mixbackend.backends.codegen.ir.scalar import Expr, apply, compute_dtype
from mixbackend.backends.codegen.lower.access import added, addressable
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.pooling import strided_windows, window_element
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.backends.codegen.lower.windows import StridedWindows

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
    """Sums over windows of one channel each."""
    _check_depthwise(lowering, input, weight, transposed, groups)
    _check_numbers((stride, padding, dilation))
    sizes, kernel = lowering.output_sizes, weight.sizes[2:]
    axes = strided_windows(input, sizes, _numbers(kernel), _numbers(stride), _numbers(padding), _numbers(dilation))
    source = addressable(lowering, input)
    turned = lowering.map(
        (*kernel, weight.sizes[0]), weight.dtype, lambda index: weight.at((index[-1], 0, *index[:-1])), apart=True
    )
    total = _total(lowering, source, turned, axes)

    def value(index: Index) -> Expr:
        return total.at(index) if bias is None else apply("add", total.at(index), bias.at((index[1],)))

    return lowering.map(sizes, input.dtype, value)


def _total(lowering: Lowering, source: Tensor, turned: Tensor, axes: Sequence[StridedWindows]) -> Tensor:
    """Sums of products: taps of the last dimension in one expression, the others as loops."""
    sizes, taps = lowering.output_sizes, [axis.kernel for axis in axes]
    inside = taps[-1:] if taps[-1] <= LARGEST_ROW else []
    looped = taps[: len(taps) - len(inside)]
    wide = compute_dtype(source.dtype)
    channels = source.sizes[1]

    def product(index: Index, place: Sequence[Any]) -> Expr:
        image = (index[0], _channel_read(index[1], sizes[1], channels, lowering), *index[2:])
        element = window_element(lowering, source, axes, image, place, 0)
        return apply("mul", element, turned.at((*place, index[1])))

    def terms(index: Index, outer: Sequence[Any]) -> Expr:
        choices = [[number] for number in range(inside[0])] if inside else [[]]
        return added([product(index, (*outer, *choice)) for choice in choices])

    if not looped:
        return lowering.map(sizes, wide, lambda index: terms(index, ()))
    (total,) = lowering.reduce("sum", sizes, looped, terms, (wide,))
    return total


def _channel_read(made: sympy.Expr, count: sympy.Expr, channels: sympy.Expr, lowering: Lowering) -> sympy.Expr:
    """The channel of the image that a channel of the result is made of."""
    return made if count == channels else sympy.Integer(0)


def _check_depthwise(lowering: Lowering, image: Tensor, weight: Tensor, transposed: bool, groups: Any) -> None:
    channels = image.sizes[1] if image.rank > 1 else None
    one_each = channels == groups and weight.sizes[0] == groups and weight.sizes[1] == 1
    if transposed or not one_each or not 3 <= image.rank <= 5 or groups == 1:
        assert lowering.view is not None
        raise RefusedError("unknown-op", f"no lowering rule for {lowering.view.op} but a depthwise one")
    if image.dtype != weight.dtype or not image.dtype.is_floating_point:
        raise RefusedError("dtype", f"a convolution of {image.dtype} and {weight.dtype}")


def _check_numbers(arguments: Sequence[Sequence[Any]]) -> None:
    """Refuse windows whose form is not known when compiling."""
    if not all(sympy.sympify(number).is_Integer for numbers in arguments for number in numbers):
        raise RefusedError("dynamic-shape", "stride, padding or dilation of a convolution is no number")


def _numbers(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(int, values))
