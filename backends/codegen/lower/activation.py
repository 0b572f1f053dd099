"""Rules of activation functions.

Place: registered by ``lower.table``.
Semantics: eager's own formulas, on float32 for 16-bit types; bounds are rounded to the tensor's type where eager
rounds them.
"""

from __future__ import annotations

import math

import torch

from mixbackend.backends.codegen.ir.scalar import Expr, apply
from mixbackend.backends.codegen.lower.broadcast import formula_rule, pointwise, read
from mixbackend.backends.codegen.lower.formula import clamped, exp, is_short, logistic, where
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.promotion import constant, rounded_constant
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


formula_rule("aten.hardtanh.default", rounded=True)(clamped)


@formula_rule("aten.threshold.default")
def _threshold(x: Expr, limit: Expr, replacement: Expr) -> Expr:
    return where(x <= limit, replacement, x)


@formula_rule("aten.hardsigmoid.default")
def _hardsigmoid(x: Expr) -> Expr:
    return clamped(x + 3.0, 0.0, 6.0) * _SIXTH


@formula_rule("aten.hardswish.default")
def _hardswish(x: Expr) -> Expr:
    return x * _hardsigmoid(x)


@formula_rule("aten.leaky_relu.default")
def _leaky_relu(x: Expr, slope: Expr) -> Expr:
    return where(x > 0.0, x, x * slope)


@rule("aten._prelu_kernel.default")
def prelu(lowering: Lowering, self: Tensor, weight: Tensor) -> Tensor:
    """``x`` where positive, else scaled by a weight."""
    return pointwise(lowering, (self, weight), lowering.output_dtype, lambda x, w: where(x > 0.0, x, w * x))


@formula_rule("aten.elu.default")
def _elu(x: Expr, alpha: Expr, scale: Expr, input_scale: Expr) -> Expr:
    negative = apply("expm1", x * input_scale) * (alpha * scale)
    return where(x < 0.0, negative, x * scale)


@rule("aten.celu.default")
def celu(lowering: Lowering, self: Tensor, alpha: float) -> Tensor:
    """``elu`` with its slope continuous at 0."""
    return pointwise(lowering, (self, alpha, 1.0, 1.0 / alpha), self.dtype, _elu)


@rule("aten.silu.default")
def silu(lowering: Lowering, self: Tensor) -> Tensor:
    """``x / (1 + exp(-x))``"""
    if is_short(self.dtype):
        return pointwise(lowering, (self,), self.dtype, lambda x: x * logistic(x, self.dtype))
    return pointwise(lowering, (self,), self.dtype, lambda x: x / (1.0 + exp(-x)))


@formula_rule("aten.mish.default")
def _mish(x: Expr) -> Expr:
    return x * apply("tanh", apply("log1p", exp(x)))


@formula_rule("aten.softplus.default")
def _softplus(x: Expr, beta: Expr, limit: Expr) -> Expr:
    scaled = x * beta
    return where(scaled > limit, x, apply("log1p", exp(scaled)) / beta)


@formula_rule("aten.softshrink.default", rounded=True)
def _softshrink(x: Expr, limit: Expr) -> Expr:
    inside = (x >= -limit) & (x <= limit)
    return where(inside, x * 0.0, where(x > limit, x - limit, x + limit))


@formula_rule("aten.hardshrink.default", rounded=True)
def _hardshrink(x: Expr, limit: Expr) -> Expr:
    return where((x >= -limit) & (x <= limit), 0.0, x)


@rule("aten.gelu.default")
def gelu(lowering: Lowering, self: Tensor, approximate: str) -> Tensor:
    """``x`` times the normal distribution's cumulative function, exactly or through ``tanh``."""
    formula = _gelu_tanh if approximate == "tanh" else _gelu
    return pointwise(lowering, (self,), self.dtype, lambda x: formula(x, self.dtype))


def _gelu(x: Expr, dtype: torch.dtype) -> Expr:
    if is_short(dtype):
        return x * apply("rough_normal", x)
    return x * 0.5 * (1.0 + apply("erf", x * math.sqrt(0.5)))


def _gelu_tanh(x: Expr, dtype: torch.dtype) -> Expr:
    """By way of ``(1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u))``, which loses nothing where ``tanh(u)`` is near -1."""
    twice = (x + x * x * x * GELU_CUBIC) * (2.0 * GELU_SCALE)
    return x * logistic(twice, dtype)


@rule("aten.glu.default")
def glu(lowering: Lowering, self: Tensor, dim: int) -> Tensor:
    """One half times the logistic function of the other."""
    dtype, sizes = self.dtype, lowering.output_sizes
    half = sizes[dim % self.rank]
    first, second = slice_axis(self, dim, 0, half), slice_axis(self, dim, half, half)
    return pointwise(lowering, (first, second), dtype, lambda a, b: a * logistic(b, dtype))


@rule("aten.log_sigmoid_forward.default")
def log_sigmoid(lowering: Lowering, self: Tensor) -> tuple[Tensor, Tensor]:
    """``min(x, 0) - log(1 + exp(-|x|))``, and ``exp(-|x|)`` where torch keeps it for the backward pass."""

    def power(index: Index) -> Expr:
        return exp(-apply("abs", read(self, index, self.dtype)))

    def value(index: Index) -> Expr:
        x = read(self, index, self.dtype)
        return apply("minimum", x, constant(0, self.dtype)) - apply("log1p", power(index))

    result = lowering.map(self.sizes, self.dtype, value)
    assert lowering.view is not None
    if lowering.view.output_tensors[1].rank != self.rank:
        nothing = rounded_constant(0, self.dtype)
        return result, lowering.lazy((0,), self.dtype, lambda index: nothing)
    return result, lowering.map(self.sizes, self.dtype, power)
