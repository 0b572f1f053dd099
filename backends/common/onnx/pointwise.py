"""Elementwise arithmetic and functions.

Place: a family of the lowering table. Types follow torch: operands are cast to the type torch computes in, which for
arithmetic is that of the result.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from mixbackend.backends.common.onnx.builder import Value
from mixbackend.backends.common.onnx.call import Call
from mixbackend.backends.common.onnx.conditions import floating_output, literal, safe_divisor, within_type
from mixbackend.backends.common.onnx.dtypes import EVERY, NUMBERS, REALS, SINGLES
from mixbackend.backends.common.onnx.table import Emitter, enter, lowers
from mixbackend.contracts import OpRule, OpView, Unsupported


def unary(operator: str) -> Emitter:
    """An ONNX operator on the argument cast to the type of the result."""
    return lambda call: call.op(operator, call.operand("self", call.out.dtype))


def binary(operator: str) -> Emitter:
    """An ONNX operator on both arguments cast to the type of the result."""

    def emit(call: Call) -> Value:
        dtype = call.out.dtype
        return call.op(operator, call.operand("self", dtype), call.operand("other", dtype))

    return emit


for _torch_name, _onnx_name in (
    ("exp", "Exp"),
    ("log", "Log"),
    ("sqrt", "Sqrt"),
    ("reciprocal", "Reciprocal"),
    ("tanh", "Tanh"),
    ("sin", "Sin"),
):
    enter(_torch_name, OpRule(dtypes=EVERY, arguments=(floating_output,)), unary(_onnx_name))

for _torch_name, _onnx_name in (
    ("cos", "Cos"),
    ("tan", "Tan"),
    ("asin", "Asin"),
    ("acos", "Acos"),
    ("atan", "Atan"),
    ("sinh", "Sinh"),
    ("cosh", "Cosh"),
    ("asinh", "Asinh"),
    ("acosh", "Acosh"),
    ("atanh", "Atanh"),
):
    enter(_torch_name, OpRule(dtypes=EVERY - {torch.float64}, arguments=(floating_output,)), unary(_onnx_name))


@lowers("erf", OpRule(dtypes=EVERY - {torch.float64}, arguments=(floating_output,)))
def _erf(call: Call) -> Value:
    value = call.operand("self", call.out.dtype)
    # Some runtimes map NaN to a number.
    return call.op("Where", call.op("IsNaN", value), value, call.op("Erf", value))


enter("abs", OpRule(dtypes=NUMBERS), unary("Abs"))
enter("neg", OpRule(dtypes=NUMBERS), unary("Neg"))
enter("relu", OpRule(dtypes=NUMBERS), lambda call: _relu(call, call.tensor("self")))


def _relu(call: Call, value: Value) -> Value:
    """By its own name where there is one: runtimes make it a part of the convolution or product before it."""
    return call.op("Relu", value) if value.dtype in SINGLES else at_least(call, value, 0)


def at_least(call: Call, value: Value, bound: float) -> Value:
    """Maximum with a number; NaN stays NaN, as in torch."""
    return call.op("Max", value, call.build.constant(bound, value.dtype))


def within(call: Call, value: Value, low: Any, high: Any) -> Value:
    """At least one bound and then at most the other; NaN stays NaN, as in torch.

    By its own name where there is one, as ``_relu``: for two operators behind a convolution, ONNX Runtime takes images
    out of its blocked layout and back. Its kernels of ``Clip`` keep NaN.
    """
    ordered = isinstance(low, (int, float)) and isinstance(high, (int, float)) and low <= high
    bounds = call.number(low, value.dtype), call.number(high, value.dtype)
    if ordered and value.dtype in SINGLES and "Clip" in call.build.target.kernels:
        return call.op("Clip", value, *bounds)
    return call.op("Min", call.op("Max", value, bounds[0]), bounds[1])


@lowers("sign", OpRule(dtypes=NUMBERS))
def _sign(call: Call) -> Value:
    value = call.tensor("self")
    if not value.dtype.is_floating_point:
        return call.op("Sign", value)
    # torch gives zero for NaN.
    zero = call.build.constant(0.0, value.dtype)
    above, below = call.op("Greater", value, zero), call.op("Less", value, zero)
    return call.op("Sub", call.build.cast(above, value.dtype), call.build.cast(below, value.dtype))


@lowers("rsqrt", OpRule(dtypes=EVERY, arguments=(floating_output,)))
def _rsqrt(call: Call) -> Value:
    return call.op("Reciprocal", call.op("Sqrt", call.operand("self", call.out.dtype)))


@lowers("log2 log10", OpRule(dtypes=EVERY, arguments=(floating_output,)))
def _log_base(call: Call) -> Value:
    base = 2.0 if "log2" in call.view.op else 10.0
    value = call.op("Log", call.operand("self", call.out.dtype))
    return call.op("Mul", value, call.build.constant(1.0 / math.log(base), value.dtype))


def _rounding(operator: str) -> Emitter:
    def emit(call: Call) -> Value:
        value = call.tensor("self")
        return call.op(operator, value) if value.dtype.is_floating_point else value

    return emit


enter("floor", OpRule(dtypes=NUMBERS), _rounding("Floor"))
enter("ceil", OpRule(dtypes=NUMBERS), _rounding("Ceil"))
enter("round", OpRule(dtypes=NUMBERS), _rounding("Round"))


@lowers("trunc", OpRule(dtypes=NUMBERS))
def _trunc(call: Call) -> Value:
    value = call.tensor("self")
    return truncated(call, value) if value.dtype.is_floating_point else value


def truncated(call: Call, value: Value) -> Value:
    """Rounded towards zero."""
    negative = call.op("Less", value, call.build.constant(0.0, value.dtype))
    return call.op("Where", negative, call.op("Ceil", value), call.op("Floor", value))


# --- arithmetic ------------------------------------------------------------------------------------------------------


def _scaled(call: Call, value: Value, factor: str) -> Value:
    """The value times a number among the arguments."""
    number = call.argument(factor)
    if isinstance(number, (int, float)) and number == 1:
        return value
    return call.op("Mul", value, call.number(number, call.out.dtype))


@lowers("add.Tensor add.Scalar", OpRule(dtypes=EVERY))
def _add(call: Call) -> Value:
    dtype = call.out.dtype
    return call.op("Add", call.operand("self", dtype), _scaled(call, call.operand("other", dtype), "alpha"))


@lowers("sub.Tensor sub.Scalar", OpRule(dtypes=EVERY))
def _sub(call: Call) -> Value:
    dtype = call.out.dtype
    return call.op("Sub", call.operand("self", dtype), _scaled(call, call.operand("other", dtype), "alpha"))


@lowers("rsub.Tensor rsub.Scalar", OpRule(dtypes=EVERY))
def _rsub(call: Call) -> Value:
    dtype = call.out.dtype
    return call.op("Sub", call.operand("other", dtype), _scaled(call, call.operand("self", dtype), "alpha"))


@lowers("mul.Tensor mul.Scalar", OpRule(dtypes=EVERY))
def _mul(call: Call) -> Value:
    """A product; with the inverse of a root it is a quotient, the form in which runtimes know an RMS norm."""
    dtype = call.out.dtype
    left, right = call.operand("self", dtype), call.operand("other", dtype)
    for factor, inverse in ((left, right), (right, left)):
        root = call.build.before(inverse, "Reciprocal")
        if root is not None and call.build.before(root, "Sqrt") is not None:
            return call.op("Div", factor, root)
    return call.op("Mul", left, right)


enter("div.Tensor div.Scalar", OpRule(dtypes=EVERY, arguments=(floating_output,)), binary("Div"))
enter("maximum minimum", OpRule(dtypes=EVERY), lambda call: binary("Max" if "max" in call.view.op else "Min")(call))


def _known_rounding(view: OpView) -> Unsupported | None:
    mode = view.argument("rounding_mode")
    if mode in (None, "trunc", "floor"):
        return None
    return Unsupported("argument", f"rounding_mode={mode!r}")


@lowers("div.Tensor_mode div.Scalar_mode", OpRule(dtypes=EVERY, arguments=(_known_rounding, safe_divisor)))
def _div_mode(call: Call) -> Value:
    dtype, mode = call.out.dtype, call.argument("rounding_mode")
    left, right = call.operand("self", dtype), call.operand("other", dtype)
    if mode == "floor":
        return floor_divided(call, left, right)
    quotient = call.op("Div", left, right)
    return truncated(call, quotient) if mode == "trunc" and dtype.is_floating_point else quotient


@lowers("floor_divide floor_divide.Scalar", OpRule(dtypes=EVERY, arguments=(safe_divisor,)))
def _floor_divide(call: Call) -> Value:
    return floor_divided(call, call.operand("self", call.out.dtype), call.operand("other", call.out.dtype))


def floor_divided(call: Call, left: Value, right: Value) -> Value:
    """Quotient rounded down, computed as torch does: from the remainder, so that rounding errors cannot move it."""
    if not left.dtype.is_floating_point:
        return call.op("Div", call.op("Sub", left, call.op("Mod", left, right)), right)
    wide_left, wide_right = _single(call, left), _single(call, right)
    rest = call.op("Mod", wide_left, wide_right, fmod=1)
    exact = call.op("Div", call.op("Sub", wide_left, rest), wide_right)
    lowered = call.op("Sub", exact, call.build.constant(1.0, exact.dtype))
    quotient = call.op("Where", _opposite_signs(call, rest, wide_right), lowered, exact)
    down = call.op("Floor", quotient)
    half = call.build.constant(0.5, down.dtype)
    up = call.op("Add", down, call.build.constant(1.0, down.dtype))
    rounded = call.op("Where", call.op("Greater", call.op("Sub", quotient, down), half), up, down)
    zero = call.build.constant(0.0, rounded.dtype)
    is_zero = call.op("Equal", wide_right, zero)
    return call.build.cast(call.op("Where", is_zero, call.op("Div", wide_left, wide_right), rounded), left.dtype)


def _single(call: Call, value: Value) -> Value:
    return value if value.dtype is torch.float64 else call.build.cast(value, torch.float32)


def _opposite_signs(call: Call, rest: Value, divisor: Value) -> Value:
    zero = call.build.constant(0.0, rest.dtype)
    differs = call.op("Xor", call.op("Less", rest, zero), call.op("Less", divisor, zero))
    return call.op("And", differs, call.op("Not", call.op("Equal", rest, zero)))


@lowers("remainder.Tensor remainder.Scalar", OpRule(dtypes=EVERY, arguments=(safe_divisor,)))
def _remainder(call: Call) -> Value:
    dtype = call.out.dtype
    left, right = call.operand("self", dtype), call.operand("other", dtype)
    if not dtype.is_floating_point:
        return call.op("Mod", left, right)
    left, right = _single(call, left), _single(call, right)
    rest = call.op("Mod", left, right, fmod=1)
    shifted = call.op("Add", rest, right)
    return call.build.cast(call.op("Where", _opposite_signs(call, rest, right), shifted, rest), dtype)


@lowers("fmod.Tensor fmod.Scalar", OpRule(dtypes=EVERY, arguments=(safe_divisor,)))
def _fmod(call: Call) -> Value:
    dtype = call.out.dtype
    return call.op("Mod", call.operand("self", dtype), call.operand("other", dtype), fmod=1)


def _safe_exponent(view: OpView) -> Unsupported | None:
    if view.output_tensors[0].dtype.is_floating_point:
        return None
    exponent = view.argument("exponent")
    if isinstance(exponent, int) and exponent >= 0:
        return None
    return Unsupported("argument", "an integer to a power known only at run time may raise")


@lowers("pow.Tensor_Scalar pow.Tensor_Tensor", OpRule(dtypes=EVERY, arguments=(_safe_exponent,)))
def _pow(call: Call) -> Value:
    base, exponent = call.operand("self", call.out.dtype), call.argument("exponent")
    if exponent in (2, 3) and base.dtype is torch.float32:
        # Runtimes multiply here too, and know norms and activations by this operator.
        return call.op("Pow", base, call.build.constant(float(exponent), base.dtype))
    if exponent == 2:
        return call.op("Mul", base, base)
    if exponent == 3:
        return call.op("Mul", call.op("Mul", base, base), base)
    if exponent == 0.5:
        return call.op("Sqrt", base)
    if exponent == -1:
        return call.op("Reciprocal", base)
    if exponent == -0.5:
        return call.op("Reciprocal", call.op("Sqrt", base))
    return call.op("Pow", base, call.number(exponent, base.dtype))


@lowers("pow.Scalar", OpRule(dtypes=EVERY, arguments=(floating_output,)))
def _pow_of_scalar(call: Call) -> Value:
    dtype = call.out.dtype
    return call.op("Pow", call.operand("self", dtype), call.operand("exponent", dtype))


@lowers("addcmul addcdiv", OpRule(dtypes=REALS))
def _addc(call: Call) -> Value:
    dtype = call.out.dtype
    combine = "Mul" if "addcmul" in call.view.op else "Div"
    term = call.op(combine, call.operand("tensor1", dtype), call.operand("tensor2", dtype))
    return call.op("Add", call.operand("self", dtype), _scaled(call, term, "value"))


@lowers("lerp.Scalar lerp.Tensor", OpRule(dtypes=REALS))
def _lerp(call: Call) -> Value:
    dtype = call.out.dtype
    start, end, weight = (call.operand(name, dtype) for name in ("self", "end", "weight"))
    # torch's two formulas, each exact at its own end.
    one = call.build.constant(1.0, dtype)
    difference = call.op("Sub", end, start)
    near = call.op("Add", start, call.op("Mul", weight, difference))
    far = call.op("Sub", end, call.op("Mul", difference, call.op("Sub", one, weight)))
    small = call.op("Less", call.op("Abs", weight), call.build.constant(0.5, dtype))
    return call.op("Where", small, near, far)


# --- choosing --------------------------------------------------------------------------------------------------------


@lowers(
    "clamp clamp.Tensor clamp_min clamp_max clamp_min.Tensor clamp_max.Tensor",
    OpRule(dtypes=NUMBERS, arguments=(within_type("min", "max"),)),
)
def _clamp(call: Call) -> Value:
    dtype = call.out.dtype
    value = call.operand("self", dtype)
    arguments = dict(call.view.node.arguments)
    if arguments.get("min") is not None and arguments.get("max") is not None:
        return within(call, value, arguments["min"], arguments["max"])
    if arguments.get("min") is not None:
        value = call.op("Max", value, call.operand("min", dtype))
    if arguments.get("max") is not None:
        value = call.op("Min", value, call.operand("max", dtype))
    return value


@lowers("where.self", OpRule(dtypes=EVERY))
def _where(call: Call) -> Value:
    dtype = call.out.dtype
    condition = call.operand("condition", torch.bool)
    return call.op("Where", condition, call.operand("self", dtype), call.operand("other", dtype))


@lowers("masked_fill.Scalar masked_fill.Tensor", OpRule(dtypes=EVERY))
def _masked_fill(call: Call) -> Value:
    dtype = call.out.dtype
    return call.op("Where", call.operand("mask", torch.bool), call.operand("value", dtype), call.tensor("self"))


@lowers("native_dropout_backward", OpRule(dtypes=REALS | {torch.bool}))
def _native_dropout_backward(call: Call) -> Value:
    dtype = call.out.dtype
    masked = call.op("Mul", call.operand("grad_output", dtype), call.operand("mask", dtype))
    return call.op("Mul", masked, call.operand("scale", dtype))


@lowers("nan_to_num", OpRule(dtypes=REALS, arguments=(literal("nan", "posinf", "neginf"),)))
def _nan_to_num(call: Call) -> Value:
    value = call.tensor("self")
    limits = torch.finfo(value.dtype)
    for name, test, default in (
        ("nan", {}, 0.0),
        ("posinf", "detect_negative", limits.max),
        ("neginf", "detect_positive", limits.min),
    ):
        wanted = call.argument(name)
        filler = call.build.constant(float(default if wanted is None else wanted), value.dtype)
        found = call.op("IsInf", value, **{test: 0}) if isinstance(test, str) else call.op("IsNaN", value)
        value = call.op("Where", found, filler, value)
    return value
