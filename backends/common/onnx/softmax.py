"""Softmax and its relatives.

Place: a family of the lowering table.
"""

from __future__ import annotations

import torch

from mixbackend.backends.common.onnx.builder import Value
from mixbackend.backends.common.onnx.call import Call
from mixbackend.backends.common.onnx.conditions import absent
from mixbackend.backends.common.onnx.dtypes import REALS
from mixbackend.backends.common.onnx.table import Emitter, enter, lowers
from mixbackend.contracts import OpRule


def _along(operator: str) -> Emitter:
    def emit(call: Call) -> Value:
        value = call.tensor("self")
        if value.rank == 0:
            single = call.op(operator, call.reshape(value, [1]), axis=0)
            return call.reshape(single, [])
        return call.op(operator, value, axis=call.dimension("dim", value.rank))

    return emit


_RULE = OpRule(dtypes=REALS, arguments=(absent("half_to_float"),))
enter("_softmax", _RULE, _along("Softmax"))
enter("_log_softmax", _RULE, _along("LogSoftmax"))


@lowers("_safe_softmax", OpRule(dtypes=REALS, ranks=(1, 8), arguments=(absent("dtype"),)))
def _safe_softmax(call: Call) -> Value:
    value = call.tensor("self")
    return softmax_of_masked(call, value, call.dimension("dim", value.rank))


def softmax_of_masked(call: Call, value: Value, axis: int) -> Value:
    """Softmax in which rows of nothing but minus infinity are zero, not NaN."""
    best = call.op("ReduceMax", value, call.build.integers([axis]), keepdims=1)
    empty = call.op("Equal", best, call.build.constant(float("-inf"), value.dtype))
    return call.op("Where", empty, call.build.constant(0.0, value.dtype), call.op("Softmax", value, axis=axis))


def _wide(call: Call, *names: str) -> tuple[Value, ...]:
    dtype = torch.float64 if call.out.dtype is torch.float64 else torch.float32
    return tuple(call.operand(name, dtype) for name in names)


def _same_type(call: Call, value: Value) -> Value:
    return call.build.cast(value, call.out.dtype)


@lowers("_softmax_backward_data", OpRule(dtypes=REALS, ranks=(1, 8)))
def _softmax_backward(call: Call) -> Value:
    grad, output = _wide(call, "grad_output", "output")
    axis = call.build.integers([call.dimension("dim", call.out.rank)])
    product = call.op("Mul", grad, output)
    total = call.op("ReduceSum", product, axis, keepdims=1)
    return _same_type(call, call.op("Sub", product, call.op("Mul", output, total)))


@lowers("_log_softmax_backward_data", OpRule(dtypes=REALS, ranks=(1, 8)))
def _log_softmax_backward(call: Call) -> Value:
    grad, output = _wide(call, "grad_output", "output")
    axis = call.build.integers([call.dimension("dim", call.out.rank)])
    total = call.op("ReduceSum", grad, axis, keepdims=1)
    return _same_type(call, call.op("Sub", grad, call.op("Mul", call.op("Exp", output), total)))
