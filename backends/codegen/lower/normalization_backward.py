"""Rules of the gradients of layer norm, group norm and RMS norm.

Place: rule module, see ``lower.rules``; the forwards are in ``normalization``.
Invariants: written over the normalised values, so nothing large cancels:
``dx = deviation * (g - mean(g) - normalized * mean(g * normalized))`` with ``g = grad * weight`` and means over what
was normalised. Gradients of weight and bias are folds of their own over the other dimensions. Of a single centered
value ``dx`` is exactly zero: of two equal products, one may be rounded and the other be part of the subtraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mixbackend.backends.codegen.ir.scalar import Expr
from mixbackend.backends.codegen.lower import view
from mixbackend.backends.codegen.lower.axes import Axes, converted, count_of, fold
from mixbackend.backends.codegen.lower.lowering import Lowering, ValueFunction
from mixbackend.backends.codegen.lower.normalization import channel_of, grouped_channels, last_axes
from mixbackend.backends.codegen.lower.rules import rule
from mixbackend.backends.codegen.lower.saved_statistics import (
    as_announced,
    check_announced,
    check_floating,
    is_wanted,
    scaled,
)
from mixbackend.backends.codegen.lower.tensor import Index, Tensor


@rule("aten.native_layer_norm_backward.default")
def layer_norm_backward(
    lowering: Lowering,
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[Any],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of input, weight and bias."""
    check_floating(grad_out, input, weight)
    axes, compute = last_axes(input, len(normalized_shape)), input.compute
    grad, leading = converted(lowering, grad_out, compute), len(axes.kept)
    center, deviation = (_of_row(lowering, saved, axes, compute) for saved in (mean, rstd))

    def normalized(index: Index) -> Expr:
        row = axes.keep(index)
        return (input.at(index) - center(row)) * deviation(row)

    def weighted(index: Index) -> Expr:
        return scaled(lowering, weight, compute, grad(index), index[leading:])

    gradient = _of_input(lowering, axes, compute, weighted, normalized, deviation) if is_wanted(lowering, 0) else None
    rows = Axes(input.sizes, axes.kept)
    along = lambda index: grad(index) * normalized(index)  # noqa: E731 - one expression
    return gradient, _of_parameter(lowering, 1, rows, along, compute), _of_parameter(lowering, 2, rows, grad, compute)


@rule("aten._fused_rms_norm_backward.default")
def rms_norm_backward(
    lowering: Lowering,
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[Any],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of input and weight; there is no mean to go back through."""
    check_floating(grad_out, input, weight)
    axes, compute = last_axes(input, len(normalized_shape)), input.compute
    grad, leading = converted(lowering, grad_out, compute), len(axes.kept)
    root = _of_row(lowering, rstd, axes, compute)

    def normalized(index: Index) -> Expr:
        return input.at(index) * root(axes.keep(index))

    def weighted(index: Index) -> Expr:
        return scaled(lowering, weight, compute, grad(index), index[leading:])

    gradient = None
    if is_wanted(lowering, 0):
        gradient = _of_input(lowering, axes, compute, weighted, normalized, root, centered=False)
    along = lambda index: grad(index) * normalized(index)  # noqa: E731 - one expression
    return gradient, _of_parameter(lowering, 1, Axes(input.sizes, axes.kept), along, compute)


@rule("aten.native_group_norm_backward.default")
def group_norm_backward(
    lowering: Lowering,
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    group: int,
    output_mask: Sequence[bool],
    **sizes: Any,
) -> tuple[Tensor | None, ...]:
    """Gradients of input, weight and bias.

    All of them are made of two folds over space: of the gradient, and of the gradient times the normalised values.
    """
    check_floating(grad_out, input, weight)
    check_announced(lowering, {0: input.dtype})
    values, grads = (grouped_channels(lowering, tensor, sizes["N"], sizes["C"], group) for tensor in (input, grad_out))
    compute, space = input.compute, Axes(values.sizes, tuple(range(3, values.rank)))
    grad = converted(lowering, grads, compute)
    center, deviation = (converted(lowering, saved, compute) for saved in (mean, rstd))

    def normalized(index: Index) -> Expr:
        return (values.at(index) - center(index[:2])) * deviation(index[:2])

    (total,) = fold(lowering, "sum", space, grad, [compute])
    along = lambda index: grad(index) * normalized(index)  # noqa: E731 - one expression
    (projection,) = fold(lowering, "sum", space, along, [compute])

    def weighted(index: Index, value: Expr) -> Expr:
        return scaled(lowering, weight, compute, value, (channel_of(values, index),))

    channels = Axes(values.sizes[:3], (2,))

    def weighted_sum(part: Tensor) -> Tensor:
        return fold(lowering, "sum", channels, lambda index: weighted(index, part.at(index)), [compute])[0]

    sums = [weighted_sum(part) for part in (total, projection)]
    members = Axes(values.sizes, tuple(range(2, values.rank))).count
    count = count_of(members, compute)

    def value(index: Index) -> Expr:
        if members == 1:
            return _of_single(weighted(index, grad(index)), deviation(index[:2]))
        means = [part.at(index[:2]) / count for part in sums]
        rest = means[0] + normalized(index) * means[1]
        return (weighted(index, grad(index)) - rest) * deviation(index[:2])

    gradient = None
    if is_wanted(lowering, 0):
        gradient = view.reshape(lowering, lowering.map(values.sizes, lowering.output_dtype, value), input.sizes)
    parameters = (_of_channels(lowering, place, part, compute) for place, part in ((1, projection), (2, total)))
    return (gradient, *parameters)


def _of_input(
    lowering: Lowering,
    axes: Axes,
    compute: torch.dtype,
    weighted: ValueFunction,
    normalized: ValueFunction,
    deviation: ValueFunction,
    centered: bool = True,
) -> Tensor:
    """Gradient of the input: one or two folds per row, then one map."""
    along = lambda index: weighted(index) * normalized(index)  # noqa: E731 - one expression
    (projection,) = fold(lowering, "sum", axes, along, [compute])
    total = fold(lowering, "sum", axes, weighted, [compute])[0] if centered else None
    count = count_of(axes.count, compute)

    def value(index: Index) -> Expr:
        row = axes.keep(index)
        if centered and axes.count == 1:
            return _of_single(weighted(index), deviation(row))
        rest = normalized(index) * (projection.at(row) / count)
        if total is not None:
            rest = rest + total.at(row) / count
        return (weighted(index) - rest) * deviation(row)

    return lowering.map(axes.sizes, lowering.output_dtype, value)


def _of_single(weighted: Expr, deviation: Expr) -> Expr:
    """Gradient of a value that was normalised alone: no plain zero, since infinite ones give NaN."""
    return (weighted - weighted) * deviation


def _of_parameter(
    lowering: Lowering, place: int, rows: Axes, value: ValueFunction, compute: torch.dtype
) -> Tensor | None:
    """Gradient of a weight or bias: a fold over all rows, ``None`` if it is not wanted."""
    if not is_wanted(lowering, place):
        return None
    (total,) = fold(lowering, "sum", rows, value, [compute])
    return as_announced(lowering, total, place)


def _of_channels(lowering: Lowering, place: int, part: Tensor, compute: torch.dtype) -> Tensor | None:
    """Gradient of a channel's weight or bias: what was folded over space, folded over the batch."""
    if not is_wanted(lowering, place):
        return None
    (total,) = fold(lowering, "sum", Axes(part.sizes, (0,)), part.at, [compute])
    return view.reshape(lowering, as_announced(lowering, total, place), (total.sizes[0] * total.sizes[1],))


def _of_row(lowering: Lowering, saved: Tensor, axes: Axes, compute: torch.dtype) -> ValueFunction:
    """A saved statistic, with normalised dimensions of size 1, at a row."""
    value = converted(lowering, saved, compute)
    return lambda row: value(axes.join(row, (0,) * len(axes.folded)))
