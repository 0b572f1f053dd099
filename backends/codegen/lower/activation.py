"""Rules of activation functions.

Place: registered by ``lower.table``.
Semantics: eager's own formulas, on float32 for 16-bit types; bounds are rounded to the tensor's type where eager
rounds them.
"""

from __future__ import annotations

import math

import torch

from mixbackend.backends.codegen.ir.scalar import Expr, apply
from mixbackend.backends.codegen.lower.broadcast import pointwise, read
from mixbackend.backends.codegen.lower.formula import (
    add,
    at_least,
    at_most,
    both,
    clamped,
    div,
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
from mixbackend.backends.codegen.lower.promotion import Number, constant, rounded_constant
from mixbackend.backends.codegen.lower.rules import rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.backends.codegen.lower.view import slice_axis

GELU_SCALE = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715
_SIXTH = 1.0 / 6.0
"""A product is several times as fast as a quotient, and off by one unit in the last place at most."""


@rule("aten.relu.default")
def relu(lowering: Lowering, self: Tensor) -> Tensor:
    """``max(x, 0)``"""
    if self.dtype == torch.bool:
        return pointwise(lowering, (self,), self.dtype, lambda value: value)
    return pointwise(lowering, (self, 0), self.dtype, lambda value, zero: apply("maximum", value, zero))


@rule("aten.hardtanh.default")
def hardtanh(lowering: Lowering, self: Tensor, min_val: Number, max_val: Number) -> Tensor:
    """Limited to an interval."""
    return pointwise(lowering, (self, min_val, max_val), self.dtype, clamped, rounded=True)


@rule("aten.threshold.default")
def threshold(lowering: Lowering, self: Tensor, threshold: Number, value: Number) -> Tensor:
    """``value`` wherever the input is not over the threshold."""
    return pointwise(
        lowering,
        (self, threshold, value),
        self.dtype,
        lambda own, limit, replacement: where(at_most(own, limit), replacement, own),
    )


@rule("aten.hardsigmoid.default")
def hardsigmoid(lowering: Lowering, self: Tensor) -> Tensor:
    """``min(max(x + 3, 0), 6) / 6``"""
    return pointwise(lowering, (self,), self.dtype, lambda value: mul(clamped(add(value, 3.0), 0.0, 6.0), _SIXTH))


@rule("aten.hardswish.default")
def hardswish(lowering: Lowering, self: Tensor) -> Tensor:
    """``x min(max(x + 3, 0), 6) / 6``"""
    return pointwise(
        lowering, (self,), self.dtype, lambda value: mul(value, mul(clamped(add(value, 3.0), 0.0, 6.0), _SIXTH))
    )


@rule("aten.leaky_relu.default")
def leaky_relu(lowering: Lowering, self: Tensor, negative_slope: Number) -> Tensor:
    """``x`` where positive, else scaled."""
    return pointwise(
        lowering, (self, negative_slope), self.dtype, lambda x, slope: where(greater(x, 0.0), x, mul(x, slope))
    )


@rule("aten._prelu_kernel.default")
def prelu(lowering: Lowering, self: Tensor, weight: Tensor) -> Tensor:
    """``x`` where positive, else scaled by a weight."""
    return pointwise(lowering, (self, weight), lowering.output_dtype, lambda x, w: where(greater(x, 0.0), x, mul(w, x)))


@rule("aten.elu.default")
def elu(lowering: Lowering, self: Tensor, alpha: Number, scale: Number, input_scale: Number) -> Tensor:
    """``scale x`` where positive, else ``alpha scale expm1(input_scale x)``."""

    def value(x: Expr, alpha: Expr, scale: Expr, input_scale: Expr) -> Expr:
        negative = mul(apply("expm1", mul(x, input_scale)), mul(alpha, scale))
        return where(less(x, 0.0), negative, mul(x, scale))

    return pointwise(lowering, (self, alpha, scale, input_scale), self.dtype, value)


@rule("aten.celu.default")
def celu(lowering: Lowering, self: Tensor, alpha: float) -> Tensor:
    """``elu`` with its slope continuous at 0."""
    return elu(lowering, self, alpha, 1.0, 1.0 / alpha)


@rule("aten.silu.default")
def silu(lowering: Lowering, self: Tensor) -> Tensor:
    """``x / (1 + exp(-x))``"""
    if is_short(self.dtype):
        return pointwise(lowering, (self,), self.dtype, lambda x: mul(x, logistic(x, self.dtype)))
    return pointwise(lowering, (self,), self.dtype, lambda x: div(x, add(1.0, exp(neg(x)))))


@rule("aten.mish.default")
def mish(lowering: Lowering, self: Tensor) -> Tensor:
    """``x tanh(log(1 + exp(x)))``"""
    return pointwise(lowering, (self,), self.dtype, lambda x: mul(x, apply("tanh", apply("log1p", exp(x)))))


@rule("aten.softplus.default")
def softplus(lowering: Lowering, self: Tensor, beta: Number, threshold: Number) -> Tensor:
    """``log(1 + exp(beta x)) / beta``, and ``x`` itself beyond the threshold."""

    def value(x: Expr, beta: Expr, limit: Expr) -> Expr:
        scaled = mul(x, beta)
        return where(greater(scaled, limit), x, div(apply("log1p", exp(scaled)), beta))

    return pointwise(lowering, (self, beta, threshold), self.dtype, value)


@rule("aten.softshrink.default")
def softshrink(lowering: Lowering, self: Tensor, lambd: Number) -> Tensor:
    """Moved towards zero by ``lambd``."""

    def value(x: Expr, limit: Expr) -> Expr:
        inside = both(at_least(x, neg(limit)), at_most(x, limit))
        return where(inside, mul(x, 0.0), where(greater(x, limit), sub(x, limit), add(x, limit)))

    return pointwise(lowering, (self, lambd), self.dtype, value, rounded=True)


@rule("aten.hardshrink.default")
def hardshrink(lowering: Lowering, self: Tensor, lambd: Number) -> Tensor:
    """Zero where no farther from it than ``lambd``."""

    def value(x: Expr, limit: Expr) -> Expr:
        return where(both(at_least(x, neg(limit)), at_most(x, limit)), 0.0, x)

    return pointwise(lowering, (self, lambd), self.dtype, value, rounded=True)


@rule("aten.gelu.default")
def gelu(lowering: Lowering, self: Tensor, approximate: str) -> Tensor:
    """``x`` times the normal distribution's cumulative function, exactly or through ``tanh``."""
    formula = _gelu_tanh if approximate == "tanh" else _gelu
    return pointwise(lowering, (self,), self.dtype, lambda x: formula(x, self.dtype))


def _gelu(x: Expr, dtype: torch.dtype) -> Expr:
    if is_short(dtype):
        return mul(x, apply("rough_normal", x))
    return mul(mul(x, 0.5), add(1.0, apply("erf", mul(x, math.sqrt(0.5)))))


def _gelu_tanh(x: Expr, dtype: torch.dtype) -> Expr:
    """By way of ``(1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u))``, which loses nothing where ``tanh(u)`` is near -1."""
    twice = mul(add(x, mul(mul(mul(x, x), x), GELU_CUBIC)), 2.0 * GELU_SCALE)
    return mul(x, logistic(twice, dtype))


@rule("aten.glu.default")
def glu(lowering: Lowering, self: Tensor, dim: int) -> Tensor:
    """One half times the logistic function of the other."""
    dtype, sizes = self.dtype, lowering.output_sizes
    half = sizes[dim % self.rank]
    first, second = slice_axis(self, dim, 0, half), slice_axis(self, dim, half, half)
    return pointwise(lowering, (first, second), dtype, lambda a, b: mul(a, logistic(b, dtype)))


@rule("aten.log_sigmoid_forward.default")
def log_sigmoid(lowering: Lowering, self: Tensor) -> tuple[Tensor, Tensor]:
    """``min(x, 0) - log(1 + exp(-|x|))``, and ``exp(-|x|)`` where torch keeps it for the backward pass."""

    def power(index: Index) -> Expr:
        return exp(neg(apply("abs", read(self, index, self.dtype))))

    def value(index: Index) -> Expr:
        x = read(self, index, self.dtype)
        return sub(apply("minimum", x, constant(0, self.dtype)), apply("log1p", power(index)))

    result = lowering.map(self.sizes, self.dtype, value)
    assert lowering.view is not None
    if lowering.view.output_tensors[1].rank != self.rank:
        nothing = rounded_constant(0, self.dtype)
        return result, lowering.lazy((0,), self.dtype, lambda index: nothing)
    return result, lowering.map(self.sizes, self.dtype, power)
