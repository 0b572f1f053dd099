"""Activation functions and their derivatives.

Place: a family of the lowering table. Derivatives are torch's formulas, written on the values torch saves.
"""

from __future__ import annotations

import math

import torch

from mixbackend.backends.common.onnx.builder import Value
from mixbackend.backends.common.onnx.call import Call
from mixbackend.backends.common.onnx.conditions import floating_output, literal, within_type
from mixbackend.backends.common.onnx.dtypes import EVERY, NUMBERS, REALS, SINGLES
from mixbackend.backends.common.onnx.pointwise import within
from mixbackend.backends.common.onnx.table import lowers
from mixbackend.contracts import OpRule

_FLOAT = OpRule(dtypes=REALS)
_SINGLE = OpRule(dtypes=SINGLES)


class _Formula:
    """Arithmetic on values of one type, so that formulas read like formulas."""

    def __init__(self, call: Call, dtype: torch.dtype) -> None:
        self._call = call
        self.dtype = dtype

    def __call__(self, operator: str, *operands: Value | float) -> Value:
        ready = [
            item if isinstance(item, Value) else self._call.build.constant(float(item), self.dtype) for item in operands
        ]
        return self._call.op(operator, *ready)

    def where(self, condition: Value, left: Value | float, right: Value | float) -> Value:
        ready = [
            item if isinstance(item, Value) else self._call.build.constant(float(item), self.dtype)
            for item in (left, right)
        ]
        return self._call.op("Where", condition, *ready)


def wide_formula(call: Call, *names: str) -> tuple[_Formula, tuple[Value, ...]]:
    """Arguments in the type torch computes elementwise formulas in: float32 for halves."""
    dtype = torch.float64 if call.out.dtype is torch.float64 else torch.float32
    return _Formula(call, dtype), tuple(call.operand(name, dtype) for name in names)


def _narrow(call: Call, value: Value) -> Value:
    return call.build.cast(value, call.out.dtype)


_GELU_SINCE = 20
"""First operator set with ``Gelu``."""


@lowers("gelu", OpRule(dtypes=SINGLES))
def _gelu(call: Call) -> Value:
    tanh = call.argument("approximate") == "tanh"
    if call.build.target.opset >= _GELU_SINCE:
        return call.op("Gelu", call.tensor("self"), approximate=call.argument("approximate"))
    f, (x,) = wide_formula(call, "self")
    if call.build.target.half_formulas:
        f, x = _Formula(call, call.out.dtype), call.tensor("self")
    if not tanh:
        return _narrow(call, f("Mul", f("Mul", 0.5, x), f("Add", 1.0, f("Erf", f("Mul", math.sqrt(0.5), x)))))
    inner = f("Add", x, f("Mul", 0.044715, f("Mul", x, f("Mul", x, x))))
    slope = f("Add", 1.0, f("Tanh", f("Mul", math.sqrt(2.0 / math.pi), inner)))
    return _narrow(call, f("Mul", f("Mul", 0.5, x), slope))


@lowers("gelu_backward", OpRule(dtypes=SINGLES))
def _gelu_backward(call: Call) -> Value:
    f, (grad, x) = wide_formula(call, "grad_output", "self")
    if call.argument("approximate") == "tanh":
        beta, kappa = math.sqrt(2.0 / math.pi), 0.044715
        square = f("Mul", x, x)
        inner = f("Mul", beta, f("Add", x, f("Mul", kappa, f("Mul", square, x))))
        tanh = f("Tanh", inner)
        left = f("Mul", 0.5, f("Add", 1.0, tanh))
        slope = f("Mul", beta, f("Add", 1.0, f("Mul", 3.0 * kappa, square)))
        right = f("Mul", f("Mul", f("Mul", 0.5, x), f("Sub", 1.0, f("Mul", tanh, tanh))), slope)
        return _narrow(call, f("Mul", grad, f("Add", left, right)))
    cumulative = f("Mul", 0.5, f("Add", 1.0, f("Erf", f("Mul", x, math.sqrt(0.5)))))
    density = f("Mul", f("Exp", f("Mul", f("Mul", x, x), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
    return _narrow(call, f("Mul", grad, f("Add", cumulative, f("Mul", x, density))))


_SEVERAL = 16


def _is_small(call: Call) -> bool:
    """Whether all elements may lie far out in the tail of the logistic function.

    Runtimes compute it to an absolute, not a relative, accuracy. That is within rounding of a tensor's largest value
    unless all its values are tiny, as may be of very few; those are worth a formula with the exponential function.
    """
    return call.out.elements() < _SEVERAL


@lowers("sigmoid", OpRule(dtypes=EVERY, arguments=(floating_output,)))
def _sigmoid(call: Call) -> Value:
    if not _is_small(call):
        return call.op("Sigmoid", call.operand("self", call.out.dtype))
    f, (x,) = wide_formula(call, "self")
    return _narrow(call, f("Div", 1.0, f("Add", 1.0, f("Exp", f("Neg", x)))))


@lowers("silu", _FLOAT)
def _silu(call: Call) -> Value:
    f, (x,) = wide_formula(call, "self")
    gated = f("Div", x, f("Add", 1.0, f("Exp", f("Neg", x)))) if _is_small(call) else f("Mul", x, f("Sigmoid", x))
    return _narrow(call, gated)


@lowers("silu_backward", _FLOAT)
def _silu_backward(call: Call) -> Value:
    f, (grad, x) = wide_formula(call, "grad_output", "self")
    gate = f("Sigmoid", x)
    slope = f("Mul", gate, f("Add", 1.0, f("Mul", x, f("Sub", 1.0, gate))))
    return _narrow(call, f("Mul", grad, slope))


@lowers("sigmoid_backward", _FLOAT)
def _sigmoid_backward(call: Call) -> Value:
    f, (grad, y) = wide_formula(call, "grad_output", "output")
    return _narrow(call, f("Mul", grad, f("Mul", f("Sub", 1.0, y), y)))


@lowers("tanh_backward", _FLOAT)
def _tanh_backward(call: Call) -> Value:
    f, (grad, y) = wide_formula(call, "grad_output", "output")
    return _narrow(call, f("Mul", grad, f("Sub", 1.0, f("Mul", y, y))))


@lowers("threshold_backward", OpRule(dtypes=NUMBERS, arguments=(literal("threshold"),)))
def _threshold_backward(call: Call) -> Value:
    value = call.tensor("self")
    zero = call.build.constant(0, call.out.dtype)
    blocked = call.op("LessOrEqual", value, call.operand("threshold", value.dtype))
    return call.op("Where", blocked, zero, call.operand("grad_output", call.out.dtype))


@lowers("threshold", OpRule(dtypes=NUMBERS, arguments=(literal("threshold", "value"),)))
def _threshold(call: Call) -> Value:
    value = call.tensor("self")
    blocked = call.op("LessOrEqual", value, call.operand("threshold", value.dtype))
    return call.op("Where", blocked, call.operand("value", value.dtype), value)


@lowers("leaky_relu", _FLOAT)
def _leaky_relu(call: Call) -> Value:
    f, (x, slope) = wide_formula(call, "self", "negative_slope")
    return _narrow(call, f.where(f("Greater", x, 0.0), x, f("Mul", x, slope)))


@lowers("leaky_relu_backward", _FLOAT)
def _leaky_relu_backward(call: Call) -> Value:
    f, (grad, x, slope) = wide_formula(call, "grad_output", "self", "negative_slope")
    return _narrow(call, f.where(f("Greater", x, 0.0), grad, f("Mul", grad, slope)))


@lowers("_prelu_kernel", _FLOAT)
def _prelu(call: Call) -> Value:
    f, (x, weight) = wide_formula(call, "self", "weight")
    return _narrow(call, f.where(f("Greater", x, 0.0), x, f("Mul", x, weight)))


@lowers("elu", OpRule(dtypes=REALS, arguments=(literal("alpha", "scale", "input_scale"),)))
def _elu(call: Call) -> Value:
    f, (x,) = wide_formula(call, "self")
    alpha, scale, inner = (float(call.argument(name)) for name in ("alpha", "scale", "input_scale"))
    negative = f("Mul", f("Sub", f("Exp", f("Mul", f("Min", x, 0.0), inner)), 1.0), alpha * scale)
    return _narrow(call, f.where(f("Greater", x, 0.0), f("Mul", x, scale), negative))


@lowers(
    "hardtanh",
    OpRule(dtypes=NUMBERS, arguments=(literal("min_val", "max_val"), within_type("min_val", "max_val"))),
)
def _hardtanh(call: Call) -> Value:
    return within(call, call.tensor("self"), call.argument("min_val"), call.argument("max_val"))


@lowers("hardtanh_backward", OpRule(dtypes=REALS, arguments=(literal("min_val", "max_val"),)))
def _hardtanh_backward(call: Call) -> Value:
    f, (grad, x, low, high) = wide_formula(call, "grad_output", "self", "min_val", "max_val")
    blocked = f("Or", f("LessOrEqual", x, low), f("GreaterOrEqual", x, high))
    return _narrow(call, f.where(blocked, 0.0, grad))


def _hard_gate(f: _Formula, x: Value) -> Value:
    """``clamp(x + 3, 0, 6)``."""
    return f("Min", f("Max", f("Add", x, 3.0), 0.0), 6.0)


@lowers("hardsigmoid", _FLOAT)
def _hardsigmoid(call: Call) -> Value:
    if call.out.dtype in SINGLES:
        return call.op("HardSigmoid", call.tensor("self"), alpha=1.0 / 6.0, beta=0.5)
    f, (x,) = wide_formula(call, "self")
    return _narrow(call, f("Div", _hard_gate(f, x), 6.0))


@lowers("hardsigmoid_backward", _SINGLE)
def _hardsigmoid_backward(call: Call) -> Value:
    f, (grad, x) = wide_formula(call, "grad_output", "self")
    inside = f("And", f("Greater", x, -3.0), f("Less", x, 3.0))
    return _narrow(call, f.where(inside, f("Mul", grad, 1.0 / 6.0), 0.0))


@lowers("hardswish", _FLOAT)
def _hardswish(call: Call) -> Value:
    if call.out.dtype in SINGLES:
        return call.op("HardSwish", call.tensor("self"))
    f, (x,) = wide_formula(call, "self")
    return _narrow(call, f("Div", f("Mul", x, _hard_gate(f, x)), 6.0))


@lowers("hardswish_backward", _FLOAT)
def _hardswish_backward(call: Call) -> Value:
    f, (grad, x) = wide_formula(call, "grad_output", "self")
    middle = f("Mul", grad, f("Add", f("Div", x, 3.0), 0.5))
    upper = f.where(f("Less", x, 3.0), middle, grad)
    return _narrow(call, f.where(f("LessOrEqual", x, -3.0), 0.0, upper))


@lowers("softplus", OpRule(dtypes=SINGLES, arguments=(literal("beta", "threshold"),)))
def _softplus(call: Call) -> Value:
    f, (x,) = wide_formula(call, "self")
    beta, threshold = float(call.argument("beta")), float(call.argument("threshold"))
    scaled = f("Mul", x, beta)
    smooth = f("Div", f("Softplus", scaled), beta)
    return _narrow(call, f.where(f("Greater", scaled, threshold), x, smooth))


@lowers("softplus_backward", OpRule(dtypes=REALS, arguments=(literal("beta", "threshold"),)))
def _softplus_backward(call: Call) -> Value:
    f, (grad, x) = wide_formula(call, "grad_output", "self")
    scaled = f("Mul", x, float(call.argument("beta")))
    linear = f("Greater", scaled, float(call.argument("threshold")))
    return _narrow(call, f.where(linear, grad, f("Mul", grad, f("Sigmoid", scaled))))


@lowers("mish", _SINGLE)
def _mish(call: Call) -> Value:
    f, (x,) = wide_formula(call, "self")
    return _narrow(call, f("Mul", x, f("Tanh", f("Softplus", x))))


@lowers("mish_backward", _SINGLE)
def _mish_backward(call: Call) -> Value:
    f, (grad, x) = wide_formula(call, "grad_output", "self")
    tanh, gate = f("Tanh", f("Softplus", x)), f("Sigmoid", x)
    slope = f("Add", tanh, f("Mul", f("Mul", x, gate), f("Sub", 1.0, f("Mul", tanh, tanh))))
    return _narrow(call, f("Mul", grad, slope))


@lowers("mse_loss", OpRule(dtypes=REALS))
def _mse_loss(call: Call) -> Value:
    f, (x, target) = wide_formula(call, "self", "target")
    difference = f("Sub", x, target)
    squared, reduction = f("Mul", difference, difference), call.argument("reduction")
    if reduction == 0:
        return _narrow(call, squared)
    return _narrow(call, call.op("ReduceMean" if reduction == 1 else "ReduceSum", squared, keepdims=0))
