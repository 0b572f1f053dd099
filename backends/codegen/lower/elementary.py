"""Rules of elementary functions and of formulas made of a few of them.

Place: registered by ``lower.table``.
Semantics: integers become the default floating type; 16-bit types are computed in float32. Rounding functions leave
integers as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, apply
from mixbackend.backends.codegen.lower.broadcast import pointwise
from mixbackend.backends.codegen.lower.formula import (
    add,
    both,
    call,
    div,
    equal,
    greater,
    less,
    logistic,
    mul,
    neg,
    sub,
    where,
)
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.promotion import Number, Operand, constant
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


def _composition(function: Callable[..., Expr]) -> Callable[..., Tensor]:
    """A rule for a floating formula of the op's tensors."""

    def lower(lowering: Lowering, **operands: Operand) -> Tensor:
        return pointwise(lowering, tuple(operands.values()), lowering.output_dtype, function, rounded=True)

    return lower


def _hypotenuse(left: Expr, right: Expr) -> Expr:
    """Scaled by the longer side, so that squares neither overflow nor vanish; an infinite side wins over NaN."""
    left, right = apply("abs", left), apply("abs", right)
    longer, shorter = apply("maximum", left, right), apply("minimum", left, right)
    ratio = div(shorter, longer)
    length = mul(longer, apply("sqrt", add(1.0, mul(ratio, ratio))))
    infinite = apply("or", equal(left, math.inf), equal(right, math.inf))
    return where(infinite, math.inf, where(equal(longer, 0.0), longer, length))


def _log_add_exp(left: Expr, right: Expr) -> Expr:
    larger = apply("maximum", left, right)
    distance = apply("abs", sub(left, right))
    same_infinity = both(equal(left, right), equal(apply("abs", left), math.inf))
    return where(same_infinity, left, add(larger, apply("log1p", apply("exp", neg(distance)))))


def _log_add_exp2(left: Expr, right: Expr) -> Expr:
    larger = apply("maximum", left, right)
    distance = apply("abs", sub(left, right))
    same_infinity = both(equal(left, right), equal(apply("abs", left), math.inf))
    grown = mul(apply("log1p", apply("exp2", neg(distance))), 1.0 / math.log(2.0))
    return where(same_infinity, left, add(larger, grown))


def _times_log(factor: Expr, value: Expr, logarithm: str = "log") -> Expr:
    product = where(equal(factor, 0.0), 0.0, mul(factor, apply(logarithm, value)))
    return where(call("isnan", value), math.nan, product)


def _entropy(value: Expr) -> Expr:
    inside = where(greater(value, 0.0), neg(mul(value, apply("log", value))), where(equal(value, 0.0), 0.0, value))
    return where(less(value, 0.0), -math.inf, inside)


def _sine_cardinal(value: Expr) -> Expr:
    product = mul(value, math.pi)
    return where(equal(value, 0.0), 1.0, div(apply("sin", product), product))


def _angle(value: Expr) -> Expr:
    return where(call("isnan", value), value, where(less(value, 0.0), math.pi, Constant(value.dtype, 0.0)))


def _heaviside(value: Expr, middle: Expr) -> Expr:
    one, zero = (Constant(value.dtype, number) for number in _one_and_zero(value.dtype))
    return where(call("eq", value, zero), middle, where(call("gt", value, zero), one, zero))


def _one_and_zero(dtype: torch.dtype) -> tuple[float | int | bool, float | int | bool]:
    if dtype == torch.bool:
        return True, False
    return (1.0, 0.0) if dtype.is_floating_point else (1, 0)


rule("aten.hypot.default")(_composition(_hypotenuse))
rule("aten.logaddexp.default")(_composition(_log_add_exp))
rule("aten.logaddexp2.default")(_composition(_log_add_exp2))
rule("aten.xlogy.Tensor", "aten.xlogy.Scalar_Self", "aten.xlogy.Scalar_Other")(_composition(_times_log))
rule("aten.special_xlog1py.default", "aten.special_xlog1py.self_scalar", "aten.special_xlog1py.other_scalar")(
    _composition(lambda factor, value: _times_log(factor, value, "log1p"))
)
rule("aten.special_entr.default")(_composition(_entropy))
rule("aten.sinc.default")(_composition(_sine_cardinal))
rule("aten.angle.default")(_composition(_angle))
rule("aten.heaviside.default")(_composition(_heaviside))
rule("aten.frac.default")(_composition(lambda value: sub(value, apply("trunc", value))))
rule("aten.deg2rad.default")(_composition(lambda value: mul(value, math.pi / 180.0)))
rule("aten.rad2deg.default")(_composition(lambda value: mul(value, 180.0 / math.pi)))


@rule("aten.logit.default")
def log_odds(lowering: Lowering, self: Tensor, eps: Number | None) -> Tensor:
    """``log(x / (1 - x))``, with ``x`` kept ``eps`` away from 0 and 1."""

    def value(probability: Expr) -> Expr:
        if eps is not None:
            low, high = constant(eps, lowering.output_dtype), sub(1.0, constant(eps, lowering.output_dtype))
            above = where(greater(probability, high), high, probability)
            probability = where(less(probability, low), low, above)
        return apply("log", div(probability, sub(1.0, probability)))

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
            return div(apply("round", mul(value, scale)), scale)
        return mul(apply("round", div(value, scale)), scale)

    return pointwise(lowering, (self,), dtype, value)
