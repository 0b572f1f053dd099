"""Rules of the gradients of activation functions.

Place: registered by ``lower.table``.
Semantics: eager's own formulas, on float32 for 16-bit types; where a gradient is cut off at a bound, the bound belongs
to the side it belongs to in eager, and a NaN does what it does in eager's vectorised loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from mixbackend.backends.codegen.ir.scalar import Expr, apply, compute_dtype
from mixbackend.backends.codegen.lower.activation import GELU_CUBIC, GELU_SCALE
from mixbackend.backends.codegen.lower.broadcast import pointwise, read, refuse_undecided
from mixbackend.backends.codegen.lower.formula import (
    add,
    at_least,
    at_most,
    both,
    div,
    either,
    exp,
    greater,
    is_short,
    less,
    logistic,
    mul,
    neg,
    sub,
    where,
)
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.promotion import Number, convert, rounded_constant
from mixbackend.backends.codegen.lower.rules import rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.backends.codegen.lower.view import slice_axis

_ONE_SIXTH = 0.16666667163372039794921875
"""A sixth in float32, which is what eager multiplies with in every type."""


def _gradient(function: Callable[..., Expr], *, rounded: bool = False) -> Callable[..., Tensor]:
    """A rule for a formula of the op's arguments, all tensors or numbers."""

    def lower(lowering: Lowering, **operands: Tensor | Number) -> Tensor:
        return pointwise(lowering, tuple(operands.values()), lowering.output_dtype, function, rounded=rounded)

    return lower


def _sigmoid(grad: Expr, result: Expr) -> Expr:
    return mul(mul(grad, sub(1.0, result)), result)


def _tanh(grad: Expr, result: Expr) -> Expr:
    return mul(grad, sub(1.0, mul(result, result)))


def _threshold(grad: Expr, x: Expr, limit: Expr) -> Expr:
    return where(at_most(x, limit), 0 if not grad.dtype.is_floating_point else 0.0, grad)


def _hardswish(grad: Expr, x: Expr) -> Expr:
    middle = mul(grad, add(div(x, 3.0), 0.5))
    return where(at_most(x, -3.0), 0.0, where(at_least(x, 3.0), grad, middle))


def _hardsigmoid(grad: Expr, x: Expr) -> Expr:
    return where(both(greater(x, -3.0), less(x, 3.0)), mul(grad, _ONE_SIXTH), 0.0)


def _hardtanh(grad: Expr, x: Expr, low: Expr, high: Expr) -> Expr:
    return where(both(greater(x, low), less(x, high)), grad, 0.0)


def _shrink(grad: Expr, x: Expr, limit: Expr) -> Expr:
    return where(either(less(x, neg(limit)), greater(x, limit)), grad, 0.0)


def _softplus(grad: Expr, x: Expr, beta: Expr, limit: Expr) -> Expr:
    scaled = mul(x, beta)
    grown = exp(scaled)
    return where(greater(scaled, limit), grad, div(mul(grad, grown), add(grown, 1.0)))


def _mish(grad: Expr, x: Expr) -> Expr:
    gate, curve = logistic(x), apply("tanh", apply("log1p", exp(x)))
    return mul(grad, add(curve, mul(mul(x, gate), sub(1.0, mul(curve, curve)))))


def _dropout(grad: Expr, mask: Expr, scale: Expr) -> Expr:
    return mul(grad, mul(mask, scale))


rule("aten.sigmoid_backward.default")(_gradient(_sigmoid))
rule("aten.tanh_backward.default")(_gradient(_tanh))
rule("aten.threshold_backward.default")(_gradient(_threshold))
rule("aten.hardswish_backward.default")(_gradient(_hardswish))
rule("aten.hardsigmoid_backward.default")(_gradient(_hardsigmoid))
rule("aten.hardtanh_backward.default")(_gradient(_hardtanh))
rule("aten.hardshrink_backward.default", "aten.softshrink_backward.default")(_gradient(_shrink, rounded=True))
rule("aten.softplus_backward.default")(_gradient(_softplus))
rule("aten.mish_backward.default")(_gradient(_mish))
rule("aten.native_dropout_backward.default")(_gradient(_dropout))


@rule("aten.leaky_relu_backward.default")
def leaky_relu_backward(
    lowering: Lowering, grad_output: Tensor, self: Tensor, negative_slope: Number, self_is_result: bool
) -> Tensor:
    """The slope is positive wherever the result stands for the input, so both have the same sign."""
    return pointwise(
        lowering,
        (grad_output, self, negative_slope),
        lowering.output_dtype,
        lambda grad, x, slope: where(greater(x, 0.0), grad, mul(grad, slope)),
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
        factor = mul(alpha, scale)
        if is_result:
            negative = mul(mul(grad, input_scale), add(x, factor))
        else:
            negative = mul(mul(mul(grad, input_scale), factor), exp(mul(x, input_scale)))
        return where(greater(x, 0.0), mul(grad, scale), negative)

    operands = (grad_output, self_or_result, alpha, scale, input_scale)
    return pointwise(lowering, operands, lowering.output_dtype, value)


@rule("aten.silu_backward.default")
def silu_backward(lowering: Lowering, grad_output: Tensor, self: Tensor) -> Tensor:
    """``s(x) (1 + x (1 - s(x)))`` with ``s`` the logistic function."""

    def value(grad: Expr, x: Expr) -> Expr:
        gate = logistic(x, lowering.output_dtype)
        return mul(mul(grad, gate), add(1.0, mul(x, sub(1.0, gate))))

    return pointwise(lowering, (grad_output, self), lowering.output_dtype, value)


@rule("aten.gelu_backward.default")
def gelu_backward(lowering: Lowering, grad_output: Tensor, self: Tensor, approximate: str) -> Tensor:
    """Derivative of ``x cdf(x)``: ``cdf(x) + x pdf(x)``, exactly or through ``tanh``."""
    formula = _gelu_tanh if approximate == "tanh" else _gelu
    dtype = lowering.output_dtype
    return pointwise(lowering, (grad_output, self), dtype, lambda grad, x: formula(grad, x, dtype))


def _gelu(grad: Expr, x: Expr, dtype: torch.dtype) -> Expr:
    if is_short(dtype):
        cumulative = apply("rough_normal", x)
    else:
        cumulative = mul(0.5, add(1.0, apply("erf", mul(x, math.sqrt(0.5)))))
    density = mul(exp(mul(mul(x, x), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
    return mul(grad, add(cumulative, mul(x, density)))


def _gelu_tanh(grad: Expr, x: Expr, dtype: torch.dtype) -> Expr:
    """With ``(1 + tanh(u)) / 2`` as the logistic function of ``2 u`` where results are short."""
    square = mul(x, x)
    inside = mul(GELU_SCALE, add(x, mul(GELU_CUBIC, mul(square, x))))
    slope = mul(GELU_SCALE, add(1.0, mul(3.0 * GELU_CUBIC, square)))
    if is_short(dtype):
        share = logistic(mul(inside, 2.0), dtype)
        return mul(grad, add(share, mul(mul(mul(2.0, x), mul(share, sub(1.0, share))), slope)))
    curve = apply("tanh", inside)
    left, right = mul(0.5, x), add(1.0, curve)
    by_curve = mul(mul(left, sub(1.0, mul(curve, curve))), slope)
    return mul(grad, add(mul(0.5, right), by_curve))


@rule("aten.log_sigmoid_backward.default")
def log_sigmoid_backward(lowering: Lowering, grad_output: Tensor, self: Tensor, buffer: Tensor) -> Tensor:
    """``grad (1 - sigmoid(x))``, from ``exp(-|x|)`` where the forward pass kept it."""

    def value(grad: Expr, x: Expr, *kept: Expr) -> Expr:
        power = kept[0] if kept else exp(neg(apply("abs", x)))
        share = div(power, add(1.0, power))
        return mul(grad, where(less(x, 0.0), sub(1.0, share), share))

    operands = (grad_output, self, buffer) if buffer.sizes == self.sizes else (grad_output, self)
    return pointwise(lowering, operands, lowering.output_dtype, value)


@rule("aten.logit_backward.default")
def logit_backward(lowering: Lowering, grad_output: Tensor, self: Tensor, eps: Number | None) -> Tensor:
    """``grad / (x (1 - x))``; outside of the bounds 0, or NaN where there are none."""

    dtype = lowering.output_dtype
    unlimited = eps is None or (isinstance(eps, (int, float)) and eps < 0)
    low = rounded_constant(0.0 if eps is None or unlimited else eps, dtype)
    high = convert(sub(1.0, low), compute_dtype(dtype), dtype)

    def value(grad: Expr, x: Expr) -> Expr:
        inside = both(at_least(x, low), at_most(x, high))
        return where(inside, div(grad, mul(x, sub(1.0, x))), math.nan if unlimited else 0.0)

    return pointwise(lowering, (grad_output, self), dtype, value)


@rule("aten._prelu_kernel_backward.default")
def prelu_backward(lowering: Lowering, grad_output: Tensor, self: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of input and weight, both in the input's sizes."""

    refuse_undecided(lowering, (grad_output, self, weight), lowering.output_sizes)

    def of_input(index: Index) -> Expr:
        grad, x, w = (read(operand, index, self.dtype) for operand in (grad_output, self, weight))
        return where(greater(x, 0.0), grad, mul(w, grad))

    def of_weight(index: Index) -> Expr:
        grad, x = read(grad_output, index, self.dtype), read(self, index, self.dtype)
        return where(greater(x, 0.0), 0.0, mul(x, grad))

    sizes = lowering.output_sizes
    return lowering.map(sizes, self.dtype, of_input), lowering.map(sizes, weight.dtype, of_weight)


@rule("aten.glu_backward.default")
def glu_backward(lowering: Lowering, grad_output: Tensor, self: Tensor, dim: int) -> Tensor:
    """Gradients of both halves, side by side."""
    axis = dim % self.rank
    half = grad_output.sizes[axis]
    first, second = slice_axis(self, axis, 0, half), slice_axis(self, axis, half, half)

    def of_first(index: Index) -> Expr:
        return mul(logistic(read(second, index, self.dtype), self.dtype), read(grad_output, index, self.dtype))

    def of_second(index: Index) -> Expr:
        gate = logistic(read(second, index, self.dtype), self.dtype)
        return mul(mul(mul(sub(1.0, gate), gate), read(grad_output, index, self.dtype)), read(first, index, self.dtype))

    return lowering.concatenate(lowering.output_sizes, axis, [(half, of_first), (half, of_second)], self.dtype)
