"""Rules of elementary functions and of formulas made of a few of them.

Place: registered by ``lower.table``.
Semantics: integers become the default floating type; 16-bit types are computed in float32. Rounding functions leave
integers as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, apply, call
from mixbackend.backends.codegen.lower.broadcast import formula_rule, pointwise
from mixbackend.backends.codegen.lower.formula import equal, logistic, where
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.promotion import Number, constant
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Tensor

_FLOAT_FUNCTIONS = (
    "acos acosh asin asinh atan atanh cos cosh erf erfc exp exp2 expm1 log log10 log1p log2 reciprocal rsqrt "
    "sin sinh sqrt tan tanh"
).split()
"""ATen operators of one argument that are a scalar operator of the same name."""


def _float_function(name: str) -> Callable[..., Tensor]:
    def lower(lowering: Lowering, self: Tensor) -> Tensor:
        return pointwise(lowering, (self,), lowering.output_dtype, lambda value: apply(name, value))

    return lower


for _name in _FLOAT_FUNCTIONS:
    rule(f"aten.{_name}.default")(_float_function(_name))


@rule("aten.sigmoid.default")
def sigmoid(lowering: Lowering, self: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``"""
    dtype = lowering.output_dtype
    return pointwise(lowering, (self,), dtype, lambda value: logistic(value, dtype))


def _unless(kinds: str, name: str) -> Callable[..., Tensor]:
    """A function that leaves values of some kinds (``b`` bool, ``i`` integer) as they are."""

    def lower(lowering: Lowering, self: Tensor) -> Tensor:
        kind = "b" if self.dtype == torch.bool else "f" if self.dtype.is_floating_point else "i"
        unchanged = kind in kinds
        return pointwise(lowering, (self,), self.dtype, lambda value: value if unchanged else apply(name, value))

    return lower


for _name, _kinds, _operator in (
    ("neg", "", "neg"),
    ("abs", "b", "abs"),
    ("sign", "b", "sign"),
    ("sgn", "b", "sign"),
    ("floor", "bi", "floor"),
    ("ceil", "bi", "ceil"),
    ("trunc", "bi", "trunc"),
    ("round", "bi", "round"),
):
    rule(f"aten.{_name}.default")(_unless(_kinds, _operator))


# -- compositions -----------------------------------------------------------------------------------------------------


@formula_rule("aten.hypot.default", rounded=True)
def _hypotenuse(left: Expr, right: Expr) -> Expr:
    """Scaled by the longer side, so that squares neither overflow nor vanish; an infinite side wins over NaN."""
    left, right = apply("abs", left), apply("abs", right)
    longer, shorter = apply("maximum", left, right), apply("minimum", left, right)
    ratio = shorter / longer
    length = longer * apply("sqrt", 1.0 + ratio * ratio)
    infinite = equal(left, math.inf) | equal(right, math.inf)
    return where(infinite, math.inf, where(equal(longer, 0.0), longer, length))


@formula_rule("aten.logaddexp.default", rounded=True)
def _log_add_exp(left: Expr, right: Expr) -> Expr:
    larger = apply("maximum", left, right)
    distance = apply("abs", left - right)
    same_infinity = equal(left, right) & equal(apply("abs", left), math.inf)
    return where(same_infinity, left, larger + apply("log1p", apply("exp", -distance)))


@formula_rule("aten.logaddexp2.default", rounded=True)
def _log_add_exp2(left: Expr, right: Expr) -> Expr:
    larger = apply("maximum", left, right)
    distance = apply("abs", left - right)
    same_infinity = equal(left, right) & equal(apply("abs", left), math.inf)
    grown = apply("log1p", apply("exp2", -distance)) * (1.0 / math.log(2.0))
    return where(same_infinity, left, larger + grown)


@formula_rule("aten.xlogy.Tensor", "aten.xlogy.Scalar_Self", "aten.xlogy.Scalar_Other", rounded=True)
def _times_log(factor: Expr, value: Expr, logarithm: str = "log") -> Expr:
    product = where(equal(factor, 0.0), 0.0, factor * apply(logarithm, value))
    return where(call("isnan", value), math.nan, product)


@formula_rule("aten.special_entr.default", rounded=True)
def _entropy(value: Expr) -> Expr:
    inside = where(value > 0.0, -(value * apply("log", value)), where(equal(value, 0.0), 0.0, value))
    return where(value < 0.0, -math.inf, inside)


@formula_rule("aten.sinc.default", rounded=True)
def _sine_cardinal(value: Expr) -> Expr:
    product = value * math.pi
    return where(equal(value, 0.0), 1.0, apply("sin", product) / product)


@formula_rule("aten.angle.default", rounded=True)
def _angle(value: Expr) -> Expr:
    return where(call("isnan", value), value, where(value < 0.0, math.pi, Constant(value.dtype, 0.0)))


@formula_rule("aten.heaviside.default", rounded=True)
def _heaviside(value: Expr, middle: Expr) -> Expr:
    one, zero = (Constant(value.dtype, number) for number in _one_and_zero(value.dtype))
    return where(call("eq", value, zero), middle, where(value > zero, one, zero))


def _one_and_zero(dtype: torch.dtype) -> tuple[float | int | bool, float | int | bool]:
    if dtype == torch.bool:
        return True, False
    return (1.0, 0.0) if dtype.is_floating_point else (1, 0)


formula_rule(
    "aten.special_xlog1py.default",
    "aten.special_xlog1py.self_scalar",
    "aten.special_xlog1py.other_scalar",
    rounded=True,
)(lambda factor, value: _times_log(factor, value, "log1p"))
formula_rule("aten.frac.default", rounded=True)(lambda value: value - apply("trunc", value))
formula_rule("aten.deg2rad.default", rounded=True)(lambda value: value * (math.pi / 180.0))
formula_rule("aten.rad2deg.default", rounded=True)(lambda value: value * (180.0 / math.pi))


@rule("aten.logit.default")
def log_odds(lowering: Lowering, self: Tensor, eps: Number | None) -> Tensor:
    """``log(x / (1 - x))``, with ``x`` kept ``eps`` away from 0 and 1."""

    def value(probability: Expr) -> Expr:
        if eps is not None:
            low, high = constant(eps, lowering.output_dtype), 1.0 - constant(eps, lowering.output_dtype)
            above = where(probability > high, high, probability)
            probability = where(probability < low, low, above)
        return apply("log", probability / (1.0 - probability))

    return pointwise(lowering, (self,), lowering.output_dtype, value)


@rule("aten.round.decimals")
def round_decimals(lowering: Lowering, self: Tensor, decimals: int) -> Tensor:
    """Rounded to so many digits after the point, or before it where negative."""
    dtype = self.dtype
    if not dtype.is_floating_point:
        raise RefusedError("dtype", "rounding integers to decimals")
    if dtype in (torch.float16, torch.bfloat16):
        raise RefusedError("dtype", f"eager scales and rounds in {dtype}, not in float32")
    scale = 10.0 ** abs(decimals)

    def value(value: Expr) -> Expr:
        if decimals >= 0:
            return apply("round", value * scale) / scale
        return apply("round", value / scale) * scale

    return pointwise(lowering, (self,), dtype, value)
