"""Mean and squared distances from it, and the rules of variance and standard deviation.

Place: rule module, see ``lower.rules``; normalisations use its moments.
Invariants: one ``welford`` fold gives both moments, or two sums where the values stay in cache. Where eager accumulates
float32 in double precision (on the CPU) so do we. Distances are NaN where a value is infinite or NaN, in any order of
folding; the mean that leaves is then what eager's kernel for the CPU has, which differs from op to op.
"""

from __future__ import annotations

from typing import NamedTuple

import sympy
import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, IndexValue, apply, call, compute_dtype
from mixbackend.backends.codegen.lower.axes import (
    Axes,
    axes_of,
    converted,
    count_of,
    fold,
    require_values,
    with_dimensions,
)
from mixbackend.backends.codegen.lower.formula import equal, where
from mixbackend.backends.codegen.lower.lowering import Lowering, ValueFunction
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
    if _is_read_once(lowering, tensor, axes):
        return moments(lowering, tensor, axes, accumulator)
    value = converted(lowering, tensor, accumulator)
    (total,) = fold(lowering, "sum", axes, value, [accumulator])
    mean = lowering.map(axes.kept_sizes, accumulator, _shared(total, axes))

    def square(index: Index) -> Expr:
        distance = value(index) - mean.at(axes.keep(index))
        return distance * distance

    return Moments(mean, *fold(lowering, "sum", axes, square, [accumulator]))


def _is_read_once(lowering: Lowering, tensor: Tensor, axes: Axes) -> bool:
    is_long = axes.count.is_Integer and axes.count * tensor.dtype.itemsize > LONGEST_ROW
    return bool(is_long) or lowering.output.device.type != "cpu"


def _shared(total: Tensor, axes: Axes) -> ValueFunction:
    """A sum over its number of values."""
    count = count_of(axes.count, total.dtype)
    return lambda index: total.at(index) / count


def mean_by_adding(lowering: Lowering, found: Moments, tensor: Tensor, axes: Axes) -> Tensor:
    """The mean of ``moments_of_rows`` where eager adds all values: infinite where values of one sign are."""
    if not _is_read_once(lowering, tensor, axes):
        return found.mean
    accumulator = found.mean.dtype
    (total,) = fold(lowering, "sum", axes, converted(lowering, tensor, accumulator), [accumulator])
    return _where_finite(lowering, found, _shared(total, axes))


def mean_by_distances(lowering: Lowering, found: Moments) -> Tensor:
    """The mean where eager moves many running ones and joins them: NaN where a value is infinite."""
    return _where_finite(lowering, found, found.distances.at)


def _mean_one_by_one(lowering: Lowering, found: Moments, tensor: Tensor, axes: Axes) -> Tensor:
    """The mean where eager moves one from value to value: infinite where only the last is, NaN where another is."""
    accumulator = found.mean.dtype
    own = converted(lowering, tensor, accumulator)

    def last(index: Index) -> Expr:
        behind = sympy.Add(*(axes.sizes[place] - 1 - index[place] for place in axes.folded))
        is_last = equal(IndexValue(torch.int64, behind), 0)
        return where(is_last, own(index), own(index) * 0.0)

    (alone,) = fold(lowering, "sum", axes, last if axes.folded else own, [accumulator])
    return _where_finite(lowering, found, alone.at)


def _where_finite(lowering: Lowering, found: Moments, otherwise: ValueFunction) -> Tensor:
    """The mean of rows if all their values are finite, or something else."""
    if lowering.output.device.type != "cpu":
        return found.mean

    def value(index: Index) -> Expr:
        return where(call("isnan", found.distances.at(index)), otherwise(index), found.mean.at(index))

    return lowering.map(found.mean.sizes, found.mean.dtype, value)


def wide_accumulator(lowering: Lowering, dtype: torch.dtype) -> torch.dtype:
    """Type in which eager accumulates statistics: double for float32 on the CPU, else the compute type."""
    if dtype == torch.float32 and lowering.output.device.type == "cpu":
        return torch.float64
    return compute_dtype(dtype)


@rule("aten.var.correction", "aten.std.correction", "aten.var_mean.correction", "aten.std_mean.correction")
def spread(
    lowering: Lowering,
    self: Tensor,
    dim: Dimensions = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Variance or standard deviation, alone or with the mean."""
    assert lowering.view is not None
    name = lowering.view.op
    if not self.dtype.is_floating_point:
        raise RefusedError("dtype", f"variance of {self.dtype}")
    axes, freedom = axes_of(self, dim), 1.0 if correction is None else float(correction)
    if freedom < 0:
        # Over nothing torch says NaN, the division here 0 / -correction = 0.
        require_values(lowering, self, axes)
    accumulator, dtype = wide_accumulator(lowering, self.dtype), lowering.output_dtype
    found = moments(lowering, self, axes, accumulator)

    def value(index: tuple) -> Expr:
        variance = found.distances.at(index) / _degrees(axes, freedom, accumulator)
        return apply("sqrt", variance) if "std" in name else variance

    result = lowering.map(axes.kept_sizes, dtype, value)
    if "mean" not in name:
        return with_dimensions(lowering, result, axes, keepdim)
    center = lowering.map(axes.kept_sizes, dtype, _mean_one_by_one(lowering, found, self, axes).at)
    return with_dimensions(lowering, result, axes, keepdim), with_dimensions(lowering, center, axes, keepdim)


def _degrees(axes: Axes, correction: float, dtype: torch.dtype) -> Expr:
    """``max(count - correction, 0)``."""
    if axes.count.is_Integer:
        return Constant(dtype, max(float(axes.count) - correction, 0.0))
    difference = count_of(axes.count, dtype) - Constant(dtype, correction)
    return apply("maximum", difference, Constant(dtype, 0.0))
