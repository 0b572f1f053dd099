"""Rules of reductions: sums, means, products, extremes and their positions, logic, norms.

Place: rule module, see ``lower.rules``.
Invariants: values are converted to the type of the result first and folded in its compute type; extremes and positions
propagate NaN as torch's do. A mean is a sum divided once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, apply, compute_dtype
from mixbackend.backends.codegen.ir.stages import ReductionKind
from mixbackend.backends.codegen.lower.axes import (
    Axes,
    axes_of,
    converted,
    count_of,
    fold,
    in_order,
    require_values,
    with_dimensions,
)
from mixbackend.backends.codegen.lower.lowering import Lowering, ValueFunction
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Tensor

Dimensions = int | Iterable[int] | None


# -- sums, means, products ----------------------------------------------------------------------------------------


@rule("aten.sum.default", "aten.sum.dim_IntList")
def sum_(lowering: Lowering, self: Tensor, dim: Dimensions = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """Sum."""
    return _fold_as_result(lowering, "sum", self, dim, keepdim)


@rule("aten.prod.default", "aten.prod.dim_int")
def prod(lowering: Lowering, self: Tensor, dim: Dimensions = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """Product."""
    return _fold_as_result(lowering, "prod", self, dim, keepdim)


@rule("aten.nansum.default")
def nansum(
    lowering: Lowering, self: Tensor, dim: Dimensions = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    """Sum that counts a NaN as 0."""
    if not self.dtype.is_floating_point:
        return _fold_as_result(lowering, "sum", self, dim, keepdim)
    compute = compute_dtype(lowering.output_dtype)

    def value(index: Any) -> Expr:
        item = self.at(index)
        return lowering.cast(apply("where", apply("isnan", item), Constant(item.dtype, 0.0), item), compute)

    axes = axes_of(self, dim)
    (total,) = fold(lowering, "sum", axes, value, [lowering.output_dtype])
    return with_dimensions(lowering, total, axes, keepdim)


@rule("aten.mean.default", "aten.mean.dim")
def mean(lowering: Lowering, self: Tensor, dim: Dimensions = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """Mean: the sum in the compute type, divided by the count."""
    axes, compute = axes_of(self, dim), compute_dtype(lowering.output_dtype)
    (total,) = fold(lowering, "sum", axes, converted(lowering, self, compute), [compute])
    count = count_of(axes.count, compute)
    quotient = lowering.map(axes.kept_sizes, lowering.output_dtype, lambda index: total.at(index) / count)
    return with_dimensions(lowering, quotient, axes, keepdim)


def _fold_as_result(lowering: Lowering, kind: ReductionKind, tensor: Tensor, dim: Dimensions, keepdim: bool) -> Tensor:
    """A fold in the type of the result."""
    dtype = lowering.output_dtype
    if dtype == torch.bool:
        raise RefusedError("dtype", f"{kind} with a result of type bool")
    axes = axes_of(tensor, dim)
    (result,) = fold(lowering, kind, axes, converted(lowering, tensor, compute_dtype(dtype)), [dtype])
    return with_dimensions(lowering, result, axes, keepdim)


# -- extremes and their positions ---------------------------------------------------------------------------------


@rule("aten.amax.default", "aten.max.default")
def amax(lowering: Lowering, self: Tensor, dim: Dimensions = None, keepdim: bool = False) -> Tensor:
    """Largest value."""
    axes = axes_of(self, dim)
    return with_dimensions(lowering, _extreme(lowering, "max", self, axes), axes, keepdim)


@rule("aten.amin.default", "aten.min.default")
def amin(lowering: Lowering, self: Tensor, dim: Dimensions = None, keepdim: bool = False) -> Tensor:
    """Smallest value."""
    axes = axes_of(self, dim)
    return with_dimensions(lowering, _extreme(lowering, "min", self, axes), axes, keepdim)


@rule("aten.aminmax.default")
def aminmax(lowering: Lowering, self: Tensor, dim: Dimensions = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Smallest and largest value."""
    return amin(lowering, self, dim, keepdim), amax(lowering, self, dim, keepdim)


@rule("aten.max.dim")
def max_dim(lowering: Lowering, self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Largest value along a dimension, and where it is first."""
    return amax(lowering, self, dim, keepdim), argmax(lowering, self, dim, keepdim)


@rule("aten.min.dim")
def min_dim(lowering: Lowering, self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Smallest value along a dimension, and where it is first."""
    return amin(lowering, self, dim, keepdim), argmin(lowering, self, dim, keepdim)


@rule("aten.argmax.default")
def argmax(lowering: Lowering, self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Position of the first largest value; over all dimensions it is the row-major one."""
    return _position(lowering, "argmax", self, dim, keepdim)


@rule("aten.argmin.default")
def argmin(lowering: Lowering, self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Position of the first smallest value; over all dimensions it is the row-major one."""
    return _position(lowering, "argmin", self, dim, keepdim)


def _extreme(lowering: Lowering, kind: ReductionKind, tensor: Tensor, axes: Axes) -> Tensor:
    require_values(lowering, tensor, axes)
    if tensor.dtype == torch.bool:
        kind = "any" if kind == "max" else "all"
    (result,) = fold(lowering, kind, axes, tensor.at, [tensor.dtype])
    return result


def _position(lowering: Lowering, kind: ReductionKind, tensor: Tensor, dim: Dimensions, keepdim: bool) -> Tensor:
    axes = axes_of(tensor, dim)
    require_values(lowering, tensor, axes)
    (result,) = fold(lowering, kind, axes, in_order(lowering, tensor), [torch.int64])
    return with_dimensions(lowering, result, axes, keepdim)


# -- logic --------------------------------------------------------------------------------------------------------


@rule("aten.any.default", "aten.any.dim", "aten.any.dims")
def any_(lowering: Lowering, self: Tensor, dim: Dimensions = None, keepdim: bool = False) -> Tensor:
    """Whether any value is not zero; NaN is not."""
    return _fold_truth(lowering, "any", self, dim, keepdim)


@rule("aten.all.default", "aten.all.dim", "aten.all.dims")
def all_(lowering: Lowering, self: Tensor, dim: Dimensions = None, keepdim: bool = False) -> Tensor:
    """Whether no value is zero."""
    return _fold_truth(lowering, "all", self, dim, keepdim)


@rule("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def count_nonzero(lowering: Lowering, self: Tensor, dim: Dimensions = None) -> Tensor:
    """How many values are not zero."""
    axes = axes_of(self, dim)
    (total,) = fold(lowering, "sum", axes, _as_numbers(lowering, _truth(self), torch.int64), [torch.int64])
    return total


def _fold_truth(lowering: Lowering, kind: ReductionKind, tensor: Tensor, dim: Dimensions, keepdim: bool) -> Tensor:
    # Here alone an empty list means no dimension at all; the result has the tensor's sizes.
    is_none = dim is not None and not isinstance(dim, int) and not tuple(dim)
    axes = Axes(tensor.sizes, ()) if is_none else axes_of(tensor, dim)
    (result,) = fold(lowering, kind, axes, _truth(tensor), [torch.bool])
    if lowering.output_dtype != torch.bool:
        # For uint8, torch keeps its type.
        truth = result
        result = lowering.map(truth.sizes, lowering.output_dtype, truth.at)
    return with_dimensions(lowering, result, axes, keepdim)


def _truth(tensor: Tensor) -> ValueFunction:
    """Whether a value is not zero."""
    if tensor.dtype == torch.bool:
        return tensor.at
    zero = Constant(tensor.compute, 0.0 if tensor.dtype.is_floating_point else 0)
    return lambda index: apply("ne", tensor.at(index), zero)


def _as_numbers(lowering: Lowering, value: ValueFunction, dtype: torch.dtype) -> ValueFunction:
    return lambda index: lowering.cast(value(index), dtype)


# -- norms --------------------------------------------------------------------------------------------------------


@rule("aten.linalg_vector_norm.default")
def vector_norm(
    lowering: Lowering,
    self: Tensor,
    ord: float = 2,
    dim: Dimensions = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Tensor:
    """``(sum |x|^p)^(1/p)`` with its limits: the extremes for infinite ``p``, the count of non-zeros for 0."""
    axes, order = axes_of(self, dim), float(ord)
    if order < 0 or math.isinf(order):
        require_values(lowering, self, axes)
    compute = compute_dtype(lowering.output_dtype)
    value = converted(lowering, self, compute)
    if math.isinf(order):
        kind: ReductionKind = "max" if order > 0 else "min"
        (result,) = fold(lowering, kind, axes, lambda index: apply("abs", value(index)), [lowering.output_dtype])
    elif order == 0:
        counted = _as_numbers(lowering, _truth(self), compute)
        (result,) = fold(lowering, "sum", axes, counted, [lowering.output_dtype])
    else:
        power, root = _power(order, compute), _root(order, compute)
        (total,) = fold(lowering, "sum", axes, lambda index: power(value(index)), [compute])
        result = lowering.map(axes.kept_sizes, lowering.output_dtype, lambda index: root(total.at(index)))
    return with_dimensions(lowering, result, axes, keepdim)


@rule("aten.norm.Scalar", "aten.norm.ScalarOpt_dim", "aten.norm.ScalarOpt_dtype", "aten.norm.ScalarOpt_dim_dtype")
def norm(
    lowering: Lowering,
    self: Tensor,
    p: float | None = 2,
    dim: Dimensions = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Tensor:
    """The vector norm under its older name."""
    return vector_norm(lowering, self, 2 if p is None else p, dim, keepdim, dtype)


def _power(order: float, compute: torch.dtype) -> Callable[[Expr], Expr]:
    """``|x|^p``."""
    if order == 1:
        return lambda value: apply("abs", value)
    if order == 2:
        return lambda value: value * value
    return lambda value: apply("pow", apply("abs", value), Constant(compute, order))


def _root(order: float, compute: torch.dtype) -> Callable[[Expr], Expr]:
    """``x^(1/p)`` of a sum."""
    if order == 1:
        return lambda value: value
    if order == 2:
        return lambda value: apply("sqrt", value)
    return lambda value: apply("pow", value, Constant(compute, 1.0 / order))
