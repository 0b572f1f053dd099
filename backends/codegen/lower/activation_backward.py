"""Rules of the gradients of activation functions.

Place: registered by ``lower.table``.
Semantics: eager's own formulas, on float32 for 16-bit types; where a gradient is cut off at a bound, the bound belongs
to the side it belongs to in eager, and a NaN does what it does in eager's vectorised loops.
"""

from __future__ import annotations

import math

import torch

from mixbackend.backends.codegen.ir.scalar import Expr, apply, compute_dtype
from mixbackend.backends.codegen.lower.activation import GELU_CUBIC, GELU_SCALE
from mixbackend.backends.codegen.lower.broadcast import formula_rule, pointwise, read, refuse_undecided
from mixbackend.backends.codegen.lower.formula import exp, is_short, logistic, where
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.promotion import Number, convert, rounded_constant
from mixbackend.backends.codegen.lower.rules import rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.backends.codegen.lower.view import slice_axis

_ONE_SIXTH = 0.16666667163372039794921875
"""A sixth in float32, which is what eager multiplies with in every type."""


@formula_rule("aten.sigmoid_backward.default")
def _sigmoid(grad: Expr, result: Expr) -> Expr:
    return grad * (1.0 - result) * result


@formula_rule("aten.tanh_backward.default")
def _tanh(grad: Expr, result: Expr) -> Expr:
    return grad * (1.0 - result * result)


@formula_rule("aten.threshold_backward.default")
def _threshold(grad: Expr, x: Expr, limit: Expr) -> Expr:
    return where(x <= limit, 0 if not grad.dtype.is_floating_point else 0.0, grad)


@formula_rule("aten.hardswish_backward.default")
def _hardswish(grad: Expr, x: Expr) -> Expr:
    middle = grad * (x / 3.0 + 0.5)
    return where(x <= -3.0, 0.0, where(x >= 3.0, grad, middle))


@formula_rule("aten.hardsigmoid_backward.default")
def _hardsigmoid(grad: Expr, x: Expr) -> Expr:
    return where((x > -3.0) & (x < 3.0), grad * _ONE_SIXTH, 0.0)


@formula_rule("aten.hardtanh_backward.default")
def _hardtanh(grad: Expr, x: Expr, low: Expr, high: Expr) -> Expr:
    return where((x > low) & (x < high), grad, 0.0)


@formula_rule("aten.hardshrink_backward.default", "aten.softshrink_backward.default", rounded=True)
def _shrink(grad: Expr, x: Expr, limit: Expr) -> Expr:
    return where((x < -limit) | (x > limit), grad, 0.0)


@formula_rule("aten.softplus_backward.default")
def _softplus(grad: Expr, x: Expr, beta: Expr, limit: Expr) -> Expr:
    scaled = x * beta
    grown = exp(scaled)
    return where(scaled > limit, grad, grad * grown / (grown + 1.0))


@formula_rule("aten.mish_backward.default")
def _mish(grad: Expr, x: Expr) -> Expr:
    gate, curve = logistic(x), apply("tanh", apply("log1p", exp(x)))
    return grad * (curve + x * gate * (1.0 - curve * curve))


@formula_rule("aten.native_dropout_backward.default")
def _dropout(grad: Expr, mask: Expr, scale: Expr) -> Expr:
    return grad * (mask * scale)


@rule("aten.leaky_relu_backward.default")
def leaky_relu_backward(
    lowering: Lowering, grad_output: Tensor, self: Tensor, negative_slope: Number, self_is_result: bool
) -> Tensor:
    """The slope is positive wherever the result stands for the input, so both have the same sign."""
    return pointwise(
        lowering,
        (grad_output, self, negative_slope),
        lowering.output_dtype,
        lambda grad, x, slope: where(x > 0.0, grad, grad * slope),
    )


@rule("aten.elu_backward.default")
def elu_backward(
    lowering: Lowering,
    grad_output: Tensor,
    alpha: Number,
    scale: Number,
    input_scale: Number,
    is_result: bool,
    self_or_result: Tensor,
) -> Tensor:
    """From the input, or from the result of ``elu``."""

    def value(grad: Expr, x: Expr, alpha: Expr, scale: Expr, input_scale: Expr) -> Expr:
        factor = alpha * scale
        if is_result:
            negative = grad * input_scale * (x + factor)
        else:
            negative = grad * input_scale * factor * exp(x * input_scale)
        return where(x > 0.0, grad * scale, negative)

    operands = (grad_output, self_or_result, alpha, scale, input_scale)
    return pointwise(lowering, operands, lowering.output_dtype, value)


@rule("aten.silu_backward.default")
def silu_backward(lowering: Lowering, grad_output: Tensor, self: Tensor) -> Tensor:
    """``s(x) (1 + x (1 - s(x)))`` with ``s`` the logistic function."""

    def value(grad: Expr, x: Expr) -> Expr:
        gate = logistic(x, lowering.output_dtype)
        return grad * gate * (1.0 + x * (1.0 - gate))

    return pointwise(lowering, (grad_output, self), lowering.output_dtype, value)


@rule("aten.gelu_backward.default")
def gelu_backward(lowering: Lowering, grad_output: Tensor, self: Tensor, approximate: str) -> Tensor:
    """Derivative of ``x cdf(x)``: ``cdf(x) + x pdf(x)``, exactly or through ``tanh``."""
    formula = _gelu_tanh if approximate == "tanh" else _gelu
    dtype = lowering.output_dtype
    return pointwise(lowering, (grad_output, self), dtype, lambda grad, x: formula(grad, x, dtype))


def _gelu(grad: Expr, x: Expr, dtype: torch.dtype) -> Expr:
    cumulative = apply("rough_normal", x) if is_short(dtype) else 0.5 * (1.0 + apply("erf", x * math.sqrt(0.5)))
    density = exp(x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    return grad * (cumulative + x * density)


def _gelu_tanh(grad: Expr, x: Expr, dtype: torch.dtype) -> Expr:
    """With ``(1 + tanh(u)) / 2`` as the logistic function of ``2 u`` where results are short."""
    square = x * x
    inside = GELU_SCALE * (x + GELU_CUBIC * (square * x))
    slope = GELU_SCALE * (1.0 + 3.0 * GELU_CUBIC * square)
    if is_short(dtype):
        share = logistic(inside * 2.0, dtype)
        return grad * (share + 2.0 * x * (share * (1.0 - share)) * slope)
    curve = apply("tanh", inside)
    left, right = 0.5 * x, 1.0 + curve
    by_curve = left * (1.0 - curve * curve) * slope
    return grad * (0.5 * right + by_curve)


@rule("aten.log_sigmoid_backward.default")
def log_sigmoid_backward(lowering: Lowering, grad_output: Tensor, self: Tensor, buffer: Tensor) -> Tensor:
    """``grad (1 - sigmoid(x))``, from ``exp(-|x|)`` where the forward pass kept it."""

    def value(grad: Expr, x: Expr, *kept: Expr) -> Expr:
        power = kept[0] if kept else exp(-apply("abs", x))
        share = power / (1.0 + power)
        return grad * where(x < 0.0, 1.0 - share, share)

    operands = (grad_output, self, buffer) if buffer.sizes == self.sizes else (grad_output, self)
    return pointwise(lowering, operands, lowering.output_dtype, value)


@rule("aten.logit_backward.default")
def logit_backward(lowering: Lowering, grad_output: Tensor, self: Tensor, eps: Number | None) -> Tensor:
    """``grad / (x (1 - x))``; outside of the bounds 0, or NaN where there are none."""

    dtype = lowering.output_dtype
    unlimited = eps is None or (isinstance(eps, (int, float)) and eps < 0)
    low = rounded_constant(0.0 if eps is None or unlimited else eps, dtype)
    high = convert(1.0 - low, compute_dtype(dtype), dtype)

    def value(grad: Expr, x: Expr) -> Expr:
        inside = (x >= low) & (x <= high)
        return where(inside, grad / (x * (1.0 - x)), math.nan if unlimited else 0.0)

    return pointwise(lowering, (grad_output, self), dtype, value)


@rule("aten._prelu_kernel_backward.default")
def prelu_backward(lowering: Lowering, grad_output: Tensor, self: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of input and weight, both in the input's sizes."""

    refuse_undecided(lowering, (grad_output, self, weight), lowering.output_sizes)

    def of_input(index: Index) -> Expr:
        grad, x, w = (read(operand, index, self.dtype) for operand in (grad_output, self, weight))
        return where(x > 0.0, grad, w * grad)

    def of_weight(index: Index) -> Expr:
        grad, x = read(grad_output, index, self.dtype), read(self, index, self.dtype)
        return where(x > 0.0, 0.0, x * grad)

    sizes = lowering.output_sizes
    return lowering.map(sizes, self.dtype, of_input), lowering.map(sizes, weight.dtype, of_weight)


@rule("aten.glu_backward.default")
def glu_backward(lowering: Lowering, grad_output: Tensor, self: Tensor, dim: int) -> Tensor:
    """Gradients of both halves, side by side."""
    axis = dim % self.rank
    half = grad_output.sizes[axis]
    first, second = slice_axis(self, axis, 0, half), slice_axis(self, axis, half, half)

    def of_first(index: Index) -> Expr:
        return logistic(read(second, index, self.dtype), self.dtype) * read(grad_output, index, self.dtype)

    def of_second(index: Index) -> Expr:
        gate = logistic(read(second, index, self.dtype), self.dtype)
        return (1.0 - gate) * gate * read(grad_output, index, self.dtype) * read(first, index, self.dtype)

    return lowering.concatenate(lowering.output_sizes, axis, [(half, of_first), (half, of_second)], self.dtype)
