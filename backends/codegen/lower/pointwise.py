"""Rules of arithmetic: sums, products, division, powers, limits.

Place: registered by ``lower.table``.
Semantics: eager's formulas in eager's compute types: integers wrap, true division and transcendental functions of
integers give the default floating type, 16-bit types are computed in float32. Numbers beside 16-bit tensors keep their
digits in ``+ - * /`` and are rounded elsewhere, as in eager.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, IndexValue, apply, call
from mixbackend.backends.codegen.lower.access import corrected
from mixbackend.backends.codegen.lower.broadcast import pointwise
from mixbackend.backends.codegen.lower.formula import equal, where
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.promotion import Number, Operand, constant
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Tensor

# -- sums and products ------------------------------------------------------------------------------------------------


def _scaled(value: Expr, alpha: Number, dtype: torch.dtype) -> Expr:
    if isinstance(alpha, (int, float)) and alpha == 1:
        return value
    factor = constant(alpha, dtype)
    return apply("and" if dtype == torch.bool else "mul", value, factor)


@rule("aten.add.Tensor", "aten.add.Scalar")
def add_scaled(lowering: Lowering, self: Operand, other: Operand, alpha: Number) -> Tensor:
    """``self + alpha * other``; of bools: or."""
    dtype = lowering.output_dtype
    name = "or" if dtype == torch.bool else "add"
    return pointwise(lowering, (self, other), dtype, lambda a, b: apply(name, a, _scaled(b, alpha, dtype)))


@rule("aten.sub.Tensor", "aten.sub.Scalar")
def subtract_scaled(lowering: Lowering, self: Operand, other: Operand, alpha: Number) -> Tensor:
    """``self - alpha * other``"""
    dtype = lowering.output_dtype
    return pointwise(lowering, (self, other), dtype, lambda a, b: a - _scaled(b, alpha, dtype))


@rule("aten.rsub.Tensor", "aten.rsub.Scalar")
def subtract_reversed(lowering: Lowering, self: Operand, other: Operand, alpha: Number) -> Tensor:
    """``other - alpha * self``"""
    return subtract_scaled(lowering, other, self, alpha)


@rule("aten.mul.Tensor", "aten.mul.Scalar")
def multiply(lowering: Lowering, self: Operand, other: Operand) -> Tensor:
    """Product; of bools: and."""
    name = "and" if lowering.output_dtype == torch.bool else "mul"
    return pointwise(lowering, (self, other), lowering.output_dtype, lambda a, b: apply(name, a, b))


@rule("aten.addcmul.default")
def add_product(lowering: Lowering, self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Number) -> Tensor:
    """``self + value * tensor1 * tensor2``"""
    dtype = lowering.output_dtype
    _need_numeric(dtype)
    return pointwise(lowering, (self, tensor1, tensor2), dtype, lambda a, b, c: a + _scaled(b, value, dtype) * c)


@rule("aten.addcdiv.default")
def add_quotient(lowering: Lowering, self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Number) -> Tensor:
    """``self + value * tensor1 / tensor2``"""
    dtype = lowering.output_dtype
    return pointwise(lowering, (self, tensor1, tensor2), dtype, lambda a, b, c: a + _scaled(b, value, dtype) / c)


def _need_numeric(dtype: torch.dtype) -> None:
    if dtype == torch.bool:
        raise RefusedError("dtype", "arithmetic on bools")


@rule("aten.lerp.Scalar", "aten.lerp.Tensor")
def interpolate(lowering: Lowering, self: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """From the nearer end, so that both ends are met exactly."""

    def value(start: Expr, end: Expr, weight: Expr) -> Expr:
        distance = end - start
        near_start = start + weight * distance
        near_end = end - distance * (1.0 - weight)
        return where(apply("abs", weight) < 0.5, near_start, near_end)

    return pointwise(lowering, (self, end, weight), lowering.output_dtype, value)


# -- division ---------------------------------------------------------------------------------------------------------


@rule("aten.div.Tensor", "aten.div.Scalar")
def divide(lowering: Lowering, self: Operand, other: Operand) -> Tensor:
    """True division."""
    return pointwise(lowering, (self, other), lowering.output_dtype, operator.truediv)


@rule("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def divide_rounding(lowering: Lowering, self: Operand, other: Operand, rounding_mode: str | None) -> Tensor:
    """Division, rounded towards zero or down."""
    if rounding_mode is None:
        return divide(lowering, self, other)
    if rounding_mode == "floor":
        return divide_down(lowering, self, other)
    dtype = lowering.output_dtype
    if dtype.is_floating_point:
        return pointwise(lowering, (self, other), dtype, lambda a, b: apply("trunc", a / b))
    return pointwise(lowering, (self, other), dtype, lambda a, b: apply("trunc_div", a, _divisor(b)))


@rule("aten.floor_divide.default", "aten.floor_divide.Scalar")
def divide_down(lowering: Lowering, self: Operand, other: Operand) -> Tensor:
    """Division, rounded down."""
    value = lambda a, b: apply("floor_div", a, _divisor(b))  # noqa: E731
    return pointwise(lowering, (self, other), lowering.output_dtype, value)


def _divisor(value: Expr) -> Expr:
    """A divisor: an integer 0, for which eager raises, is told."""
    if value.dtype.is_floating_point:
        return value
    is_known = isinstance(value, Constant) and value.value != 0
    if is_known or (isinstance(value, IndexValue) and value.expression.is_nonzero):
        return value
    one = Constant(value.dtype, 1)
    return corrected(apply("where", apply("eq", value, Constant(value.dtype, 0)), one, value), value)


def _rounded_binary(name: str, of_second: Callable[[Expr], Expr] = lambda value: value) -> Callable[..., Tensor]:
    def lower(lowering: Lowering, self: Operand, other: Operand) -> Tensor:
        value = lambda a, b: apply(name, a, of_second(b))  # noqa: E731
        return pointwise(lowering, (self, other), lowering.output_dtype, value, rounded=True)

    return lower


rule("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")(
    _rounded_binary("remainder", _divisor)
)
rule("aten.fmod.Tensor", "aten.fmod.Scalar")(_rounded_binary("fmod", _divisor))
rule("aten.atan2.default")(_rounded_binary("atan2"))
rule("aten.copysign.Tensor", "aten.copysign.Scalar")(_rounded_binary("copysign"))
rule("aten.minimum.default")(_rounded_binary("minimum"))
rule("aten.maximum.default")(_rounded_binary("maximum"))


# -- powers -----------------------------------------------------------------------------------------------------------

_POWERS: dict[float, Callable[[Expr], Expr]] = {
    1: lambda value: value,
    2: lambda value: value * value,
    3: lambda value: value * value * value,
}
_FLOAT_POWERS: dict[float, Callable[[Expr], Expr]] = {
    4: lambda value: value * value * (value * value),
    0.5: lambda value: apply("sqrt", value),
    -0.5: lambda value: apply("rsqrt", value),
    -1: lambda value: apply("reciprocal", value),
    -2: lambda value: apply("reciprocal", value * value),
}


@rule("aten.pow.Tensor_Scalar")
def power_of_number(lowering: Lowering, self: Tensor, exponent: Number) -> Tensor:
    """Power by a number; small ones are products, as in eager."""
    dtype = lowering.output_dtype
    if isinstance(exponent, (int, float)):
        if exponent == 0:
            return lowering.lazy(lowering.output_sizes, dtype, lambda index: constant(1, dtype))
        short = _POWERS.get(exponent) or (_FLOAT_POWERS.get(exponent) if dtype.is_floating_point else None)
        if dtype == torch.float16 and lowering.output.device.type == "cpu" and abs(exponent) == 0.5:
            # There eager takes the power of -inf and of -0.0, which differ from their roots.
            short = None
        if short is not None:
            return pointwise(lowering, (self,), dtype, short)
    return power(lowering, self, exponent)


@rule("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def power(lowering: Lowering, self: Operand, exponent: Operand) -> Tensor:
    """Power by a tensor."""
    _need_numeric(lowering.output_dtype)
    return pointwise(lowering, (self, exponent), lowering.output_dtype, lambda a, b: apply("pow", a, b), rounded=True)


# -- limits -----------------------------------------------------------------------------------------------------------


@rule(
    "aten.clamp.default",
    "aten.clamp.Tensor",
    "aten.clamp_min.default",
    "aten.clamp_min.Tensor",
    "aten.clamp_max.default",
    "aten.clamp_max.Tensor",
)
def clamp(lowering: Lowering, self: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """Limit from below, then from above; a NaN anywhere gives NaN."""
    bounds = [("maximum", min), ("minimum", max)]
    given = [(name, bound) for name, bound in bounds if bound is not None]

    def value(first: Expr, *limits: Expr) -> Expr:
        for (name, _), limit in zip(given, limits, strict=True):
            first = apply(name, first, limit)
        return first

    operands = (self, *(bound for _, bound in given))
    return pointwise(lowering, operands, lowering.output_dtype, value, rounded=True)


def _ignoring_nan(name: str) -> Callable[..., Tensor]:
    def value(left: Expr, right: Expr) -> Expr:
        chosen = apply(name, left, right)
        if not left.dtype.is_floating_point:
            return chosen
        return where(call("isnan", left), right, where(call("isnan", right), left, chosen))

    def lower(lowering: Lowering, self: Tensor, other: Tensor) -> Tensor:
        return pointwise(lowering, (self, other), lowering.output_dtype, value)

    return lower


rule("aten.fmin.default")(_ignoring_nan("minimum"))
rule("aten.fmax.default")(_ignoring_nan("maximum"))


@rule("aten.nan_to_num.default")
def replace_nonfinite(
    lowering: Lowering, self: Tensor, nan: Number | None, posinf: Number | None, neginf: Number | None
) -> Tensor:
    """NaN and infinities replaced by numbers: 0 and the extreme values of the storage type unless given."""
    dtype = self.dtype
    if not dtype.is_floating_point:
        return pointwise(lowering, (self,), dtype, lambda value: value)
    limits = torch.finfo(dtype)
    replacements = (
        0.0 if nan is None else nan,
        limits.max if posinf is None else posinf,
        limits.min if neginf is None else neginf,
    )

    def value(value: Expr, nan: Expr, highest: Expr, lowest: Expr) -> Expr:
        finite = where(equal(value, math.inf), highest, where(equal(value, -math.inf), lowest, value))
        return where(call("isnan", value), nan, finite)

    return pointwise(lowering, (self, *replacements), dtype, value, rounded=True)
