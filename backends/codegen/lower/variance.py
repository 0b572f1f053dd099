"""Mean and squared distances from it, and the rules of variance and standard deviation.

Place: rule module, see ``lower.rules``; normalisations use its moments.
Invariants: one ``welford`` fold gives both moments, or two sums where the values stay in cache. Where eager accumulates
float32 in double precision (on the CPU) so do we.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, apply, compute_dtype
from mixbackend.backends.codegen.lower.axes import (
    Axes,
    axes_of,
    converted,
    count_of,
    fold,
    require_values,
    with_dimensions,
)
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.reduction import Dimensions
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor

LONGEST_ROW = 1 << 17
"""Bytes of a row that a core's own cache holds beside everything else."""


class Moments(NamedTuple):
    """Over the kept dimensions: the mean, and the sum of squared distances from it."""

    mean: Tensor
    distances: Tensor


def moments(lowering: Lowering, tensor: Tensor, axes: Axes, accumulator: torch.dtype) -> Moments:
    """Both moments, accumulated and stored in a given type."""
    value = converted(lowering, tensor, accumulator)
    return Moments(*fold(lowering, "welford", axes, value, [accumulator, accumulator]))


def moments_of_rows(lowering: Lowering, tensor: Tensor, axes: Axes, accumulator: torch.dtype) -> Moments:
    """Both moments of rows: the mean from a plain sum, the distances from a second pass, which finds a row in cache.

    Closer to the exact mean than a running one, and free of its divisions. Rows that no cache holds are read once, and
    so are all on a GPU, where many blocks share a row and a second pass would be kernels of its own.
    """
    elements = axes.count
    is_long = elements.is_Integer and elements * tensor.dtype.itemsize > LONGEST_ROW
    if is_long or lowering.output.device.type != "cpu":
        return moments(lowering, tensor, axes, accumulator)
    value = converted(lowering, tensor, accumulator)
    (total,) = fold(lowering, "sum", axes, value, [accumulator])
    count = count_of(elements, accumulator)
    mean = lowering.map(axes.kept_sizes, accumulator, lambda index: apply("div", total.at(index), count))

    def square(index: Index) -> Expr:
        distance = apply("sub", value(index), mean.at(axes.keep(index)))
        return apply("mul", distance, distance)

    return Moments(mean, *fold(lowering, "sum", axes, square, [accumulator]))


def wide_accumulator(lowering: Lowering, dtype: torch.dtype) -> torch.dtype:
    """Type in which eager accumulates statistics: double for float32 on the CPU, else the compute type."""
    if dtype == torch.float32 and lowering.output.device.type == "cpu":
        return torch.float64
    return compute_dtype(dtype)


@rule("aten.var.correction")
def var(
    lowering: Lowering,
    self: Tensor,
    dim: Dimensions = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    """Variance."""
    return _spread(lowering, self, dim, correction, keepdim, root=False)[0]


@rule("aten.std.correction")
def std(
    lowering: Lowering,
    self: Tensor,
    dim: Dimensions = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    """Standard deviation."""
    return _spread(lowering, self, dim, correction, keepdim, root=True)[0]


@rule("aten.var_mean.correction")
def var_mean(
    lowering: Lowering,
    self: Tensor,
    dim: Dimensions = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """Variance and mean."""
    return _spread(lowering, self, dim, correction, keepdim, root=False)


@rule("aten.std_mean.correction")
def std_mean(
    lowering: Lowering,
    self: Tensor,
    dim: Dimensions = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean."""
    return _spread(lowering, self, dim, correction, keepdim, root=True)


def _spread(
    lowering: Lowering, tensor: Tensor, dim: Dimensions, correction: float | None, keepdim: bool, root: bool
) -> tuple[Tensor, Tensor]:
    """Variance or its root, and the mean."""
    if not tensor.dtype.is_floating_point:
        raise RefusedError("dtype", f"variance of {tensor.dtype}")
    axes, freedom = axes_of(tensor, dim), 1.0 if correction is None else float(correction)
    if freedom < 0:
        # Over nothing torch says NaN, the division here 0 / -correction = 0.
        require_values(lowering, tensor, axes)
    accumulator, dtype = wide_accumulator(lowering, tensor.dtype), lowering.output_dtype
    mean, distances = moments(lowering, tensor, axes, accumulator)

    def value(index: tuple) -> Expr:
        variance = apply("div", distances.at(index), _degrees(axes, freedom, accumulator))
        return apply("sqrt", variance) if root else variance

    spread = lowering.map(axes.kept_sizes, dtype, value)
    center = lowering.map(axes.kept_sizes, dtype, mean.at)
    return with_dimensions(lowering, spread, axes, keepdim), with_dimensions(lowering, center, axes, keepdim)


def _degrees(axes: Axes, correction: float, dtype: torch.dtype) -> Expr:
    """``max(count - correction, 0)``."""
    if axes.count.is_Integer:
        return Constant(dtype, max(float(axes.count) - correction, 0.0))
    difference = apply("sub", count_of(axes.count, dtype), Constant(dtype, correction))
    return apply("maximum", difference, Constant(dtype, 0.0))
