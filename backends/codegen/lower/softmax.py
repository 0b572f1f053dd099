"""Rules of the softmax family, forward and backward, and of ``logsumexp``.

Place: rule module, see ``lower.rules``.
Invariants: exponents are taken relative to the largest value, so nothing overflows; everything between is in the
compute type of the result, whatever the storage type.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, apply, compute_dtype
from mixbackend.backends.codegen.lower.axes import Axes, axes_of, converted, fold, require_values, with_dimensions
from mixbackend.backends.codegen.lower.lowering import Lowering, ValueFunction
from mixbackend.backends.codegen.lower.reduction import Dimensions
from mixbackend.backends.codegen.lower.rules import rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor


@rule("aten._softmax.default", "aten.softmax.int")
def softmax(
    lowering: Lowering, self: Tensor, dim: int, half_to_float: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    """``exp(x - max) / sum``."""
    if _is_empty(self):
        return _nothing(lowering, self)
    pieces = _Exponentials(lowering, self, dim)
    return lowering.map(self.sizes, lowering.output_dtype, pieces.quotient)


@rule("aten._safe_softmax.default")
def safe_softmax(lowering: Lowering, self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax with zeros where a row is minus infinity throughout."""
    if _is_empty(self):
        return _nothing(lowering, self)
    pieces = _Exponentials(lowering, self, dim)
    lowest, zero = Constant(pieces.compute, -math.inf), Constant(pieces.compute, 0.0)

    def value(index: Index) -> Expr:
        is_masked = apply("eq", pieces.largest.at(pieces.axes.keep(index)), lowest)
        return apply("where", is_masked, zero, pieces.quotient(index))

    return lowering.map(self.sizes, lowering.output_dtype, value)


@rule("aten._log_softmax.default", "aten.log_softmax.int")
def log_softmax(
    lowering: Lowering, self: Tensor, dim: int, half_to_float: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    """``x - max - log(sum)``."""
    if _is_empty(self):
        return _nothing(lowering, self)
    pieces = _Exponentials(lowering, self, dim)
    logarithm = lowering.map(pieces.axes.kept_sizes, pieces.compute, lambda index: apply("log", pieces.total.at(index)))

    def value(index: Index) -> Expr:
        return pieces.shifted(index) - logarithm.at(pieces.axes.keep(index))

    return lowering.map(self.sizes, lowering.output_dtype, value)


class _Exponentials:
    """The stages that a softmax and its logarithm share: largest value, exponentials, their sum."""

    def __init__(self, lowering: Lowering, tensor: Tensor, dim: int) -> None:
        self.axes: Axes = axes_of(tensor, dim)
        self.compute = compute_dtype(lowering.output_dtype)
        require_values(lowering, tensor, self.axes)
        self._value = converted(lowering, tensor, self.compute)
        (self.largest,) = fold(lowering, "max", self.axes, self._value, [self.compute])
        self._exponentials = lowering.map(tensor.sizes, self.compute, self._exponential)
        (self.total,) = fold(lowering, "sum", self.axes, self._exponentials.at, [self.compute])

    def shifted(self, index: Index) -> Expr:
        """Distance of a value from the largest."""
        return self._value(index) - self.largest.at(self.axes.keep(index))

    def quotient(self, index: Index) -> Expr:
        """Share of a value in the sum, which is at least 1: its reciprocal is taken once per row."""
        reciprocal = apply("reciprocal", self.total.at(self.axes.keep(index)))
        return self._exponentials.at(index) * reciprocal

    def _exponential(self, index: Index) -> Expr:
        return apply("exp", self.shifted(index))


def _is_empty(tensor: Tensor) -> bool:
    return any(size == 0 for size in tensor.sizes)


def _nothing(lowering: Lowering, tensor: Tensor) -> Tensor:
    """An empty result: no row has a largest value."""
    zero = Constant(compute_dtype(lowering.output_dtype), 0.0)
    return lowering.map(tensor.sizes, lowering.output_dtype, lambda index: zero)


@rule("aten._softmax_backward_data.default")
def softmax_backward(
    lowering: Lowering, grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    """``(grad - sum(grad * output)) * output``."""
    axes, grad, share = _backward_operands(lowering, grad_output, output, dim)
    weighted = lambda index: grad(index) * share(index)  # noqa: E731 - one expression
    (total,) = fold(lowering, "sum", axes, weighted, [compute_dtype(lowering.output_dtype)])

    def value(index: Index) -> Expr:
        return (grad(index) - total.at(axes.keep(index))) * share(index)

    return lowering.map(output.sizes, lowering.output_dtype, value)


@rule("aten._log_softmax_backward_data.default")
def log_softmax_backward(
    lowering: Lowering, grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    """``grad - exp(output) * sum(grad)``."""
    axes, grad, logarithm = _backward_operands(lowering, grad_output, output, dim)
    (total,) = fold(lowering, "sum", axes, grad, [compute_dtype(lowering.output_dtype)])

    def value(index: Index) -> Expr:
        share = apply("exp", logarithm(index))
        return grad(index) - share * total.at(axes.keep(index))

    return lowering.map(output.sizes, lowering.output_dtype, value)


def _backward_operands(
    lowering: Lowering, grad_output: Tensor, output: Tensor, dim: int
) -> tuple[Axes, ValueFunction, ValueFunction]:
    compute = compute_dtype(lowering.output_dtype)
    axes = axes_of(output, dim)
    return axes, converted(lowering, grad_output, compute), converted(lowering, output, compute)


@rule("aten.logsumexp.default")
def logsumexp(lowering: Lowering, self: Tensor, dim: Dimensions, keepdim: bool = False) -> Tensor:
    """``log(sum(exp(x - max))) + max``; an infinite largest value is not subtracted."""
    axes, dtype = axes_of(self, dim), lowering.output_dtype
    compute = compute_dtype(dtype)
    if axes.count == 0:
        nothing = lowering.map(axes.kept_sizes, dtype, lambda index: Constant(compute, -math.inf))
        return with_dimensions(lowering, nothing, axes, keepdim)
    require_values(lowering, self, axes)
    value = converted(lowering, self, compute)
    (largest,) = fold(lowering, "max", axes, value, [compute])
    finite = _finite_or_zero(lowering, largest)

    def exponential(index: Index) -> Expr:
        return apply("exp", value(index) - finite.at(axes.keep(index)))

    (total,) = fold(lowering, "sum", axes, exponential, [compute])

    def result(index: Index) -> Expr:
        return apply("log", total.at(index)) + finite.at(index)

    return with_dimensions(lowering, lowering.map(axes.kept_sizes, dtype, result), axes, keepdim)


def _finite_or_zero(lowering: Lowering, tensor: Tensor) -> Tensor:
    """The tensor with zeros for infinities; NaN stays."""
    zero, bound = Constant(tensor.compute, 0.0), Constant(tensor.compute, math.inf)

    def value(index: Any) -> Expr:
        item = tensor.at(index)
        return apply("where", apply("eq", apply("abs", item), bound), zero, item)

    return lowering.map(tensor.sizes, tensor.dtype, value)
