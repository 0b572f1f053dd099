"""Rules of normalisations over the values of one sample: layer norm, group norm, RMS norm.

Place: rule module, see ``lower.rules``; their gradients are in ``normalization_backward``.
Invariants: per row one fold for the moments, one small map for the reciprocal deviation, one map of the full size:
three stages that fuse into one kernel. The statistics that are used are not rounded, those that leave are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import flatten
from mixbackend.backends.codegen.ir.scalar import Constant, Expr, apply
from mixbackend.backends.codegen.lower import view
from mixbackend.backends.codegen.lower.axes import Axes, count_of, fold, require_values, with_dimensions
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.saved_statistics import (
    as_announced,
    check_announced,
    check_floating,
    reciprocal_deviation,
    scaled,
    shifted,
    statistic_dtype,
)
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.backends.codegen.lower.variance import mean_by_adding, mean_by_distances, moments_of_rows
from mixbackend.contracts.rate_rows import is_channels_last


@rule("aten.native_layer_norm.default")
def layer_norm(
    lowering: Lowering,
    input: Tensor,
    normalized_shape: Sequence[Any],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised over the last dimensions, with the mean and reciprocal deviation of each row."""
    check_floating(input, weight, bias)
    saved = statistic_dtype(input, (weight, bias))
    check_announced(lowering, {1: saved, 2: saved})
    axes, compute = last_axes(input, len(normalized_shape)), input.compute
    require_values(lowering, input, axes, "input")
    found = moments_of_rows(lowering, input, axes, compute)
    deviation = reciprocal_deviation(lowering, found, axes.count, eps, compute)

    def value(index: Index) -> Expr:
        row, inner = axes.keep(index), index[len(axes.kept) :]
        centered = input.at(index) - found.mean.at(row)
        normalized = centered * deviation.at(row)
        return shifted(lowering, bias, compute, scaled(lowering, weight, compute, normalized, inner), inner)

    result = lowering.map(input.sizes, lowering.output_dtype, value)
    center = mean_by_distances(lowering, found)
    statistics = (as_announced(lowering, center, 1), as_announced(lowering, deviation, 2))
    mean, rstd = (with_dimensions(lowering, statistic, axes, True) for statistic in statistics)
    return result, mean, rstd


@rule("aten._fused_rms_norm.default")
def rms_norm(
    lowering: Lowering,
    input: Tensor,
    normalized_shape: Sequence[Any],
    weight: Tensor | None,
    eps: float | None,
) -> tuple[Tensor, Tensor]:
    """Divided by the root of the mean square over the last dimensions, with the reciprocal root of each row."""
    check_floating(input, weight)
    axes, compute = last_axes(input, len(normalized_shape)), input.compute
    require_values(lowering, input, axes, "input")
    square = lambda index: input.at(index) * input.at(index)  # noqa: E731 - one expression
    (total,) = fold(lowering, "sum", axes, square, [compute])
    epsilon = Constant(compute, torch.finfo(compute).eps if eps is None else float(eps))
    count = count_of(axes.count, compute)

    def reciprocal(index: Index) -> Expr:
        return apply("rsqrt", total.at(index) / count + epsilon)

    root = lowering.map(axes.kept_sizes, compute, reciprocal)

    def value(index: Index) -> Expr:
        normalized = input.at(index) * root.at(axes.keep(index))
        return scaled(lowering, weight, compute, normalized, index[len(axes.kept) :])

    result = lowering.map(input.sizes, lowering.output_dtype, value)
    return result, with_dimensions(lowering, as_announced(lowering, root, 1), axes, True)


@rule("aten.native_group_norm.default")
def group_norm(
    lowering: Lowering,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    group: int,
    eps: float,
    **sizes: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised over each group of channels, with the mean and reciprocal deviation of each."""
    check_floating(input, weight, bias)
    saved = statistic_dtype(input, (weight, bias))
    check_announced(lowering, {1: saved, 2: saved})
    grouped, compute = grouped_channels(lowering, input, sizes["N"], sizes["C"], group), input.compute
    require_values(lowering, input, Axes(input.sizes, tuple(range(1, input.rank))), "input")
    axes = Axes(grouped.sizes, tuple(range(2, grouped.rank)))
    found = moments_of_rows(lowering, grouped, axes, compute)
    deviation = reciprocal_deviation(lowering, found, axes.count, eps, compute)

    def value(index: Index) -> Expr:
        row, channel = index[:2], (channel_of(grouped, index),)
        centered = grouped.at(index) - found.mean.at(row)
        normalized = centered * deviation.at(row)
        return shifted(lowering, bias, compute, scaled(lowering, weight, compute, normalized, channel), channel)

    result = lowering.map(grouped.sizes, lowering.output_dtype, value)
    # Eager has a kernel of its own for such images, which adds.
    image = None if lowering.view is None else lowering.view.tensor("input")
    adds = image is not None and is_channels_last(image)
    center = mean_by_adding(lowering, found, grouped, axes) if adds else mean_by_distances(lowering, found)
    return (
        view.reshape(lowering, result, input.sizes),
        as_announced(lowering, center, 1),
        as_announced(lowering, deviation, 2),
    )


def last_axes(tensor: Tensor, count: int) -> Axes:
    """The last ``count`` dimensions reduced."""
    return Axes(tensor.sizes, tuple(range(tensor.rank - count, tensor.rank)))


def grouped_channels(lowering: Lowering, tensor: Tensor, batch: Any, channels: Any, groups: int) -> Tensor:
    """The tensor as batch, group, channel of the group, and space.

    Raises:
        RefusedError: the tensor's first dimensions are not batch and channels, or their number is not known.
    """
    if tensor.rank < 2 or tensor.sizes[0] != batch or tensor.sizes[1] != channels:
        raise RefusedError("argument", f"a tensor of sizes {tensor.sizes} as {batch} samples of {channels} channels")
    if not sympy.sympify(channels).is_Integer:
        raise RefusedError("dynamic-shape", f"{channels} channels in {groups} groups; their number must be known")
    return view.reshape(lowering, tensor, (batch, groups, int(channels) // groups, *tensor.sizes[2:]))


def channel_of(grouped: Tensor, index: Index) -> sympy.Expr:
    """Number of the channel at an index of grouped channels."""
    return flatten(index[1:3], grouped.sizes[1:3])
