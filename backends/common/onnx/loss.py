"""Negative log likelihood, forward and backward.

Place: a family of the lowering table.
"""

from __future__ import annotations

import torch

from mixbackend.backends.common.onnx.builder import Value
from mixbackend.backends.common.onnx.call import Call
from mixbackend.backends.common.onnx.conditions import literal, rank_of
from mixbackend.backends.common.onnx.dtypes import REALS
from mixbackend.backends.common.onnx.table import lowers
from mixbackend.contracts import OpRule

_RULE = OpRule(dtypes=REALS | {torch.int64}, arguments=(rank_of("self", 2, 2), literal("reduction", "ignore_index")))
_MEAN = 1


def _weights(call: Call, dtype: torch.dtype) -> tuple[Value, Value]:
    """(class of every row, weight of every row); ignored rows have class 0 and weight 0."""
    target = call.tensor("target")
    ignored = call.op("Equal", target, call.build.constant(call.integer("ignore_index"), torch.int64))
    classes = call.op("Where", ignored, call.build.constant(0, torch.int64), target)
    zero, one = call.build.constant(0.0, dtype), call.build.constant(1.0, dtype)
    kept = call.op("Gather", call.operand("weight", dtype), classes, axis=0) if call.has("weight") else one
    return classes, call.op("Where", ignored, zero, kept)


@lowers("nll_loss_forward", _RULE)
def _nll_forward(call: Call) -> tuple[Value | None, ...]:
    dtype = torch.float64 if call.out.dtype is torch.float64 else torch.float32
    classes, weights = _weights(call, dtype)
    column = call.op("Unsqueeze", classes, call.build.integers([1]))
    picked = call.op("GatherElements", call.operand("self", dtype), column, axis=1)
    picked = call.op("Squeeze", picked, call.build.integers([1]))
    zero = call.build.constant(0.0, dtype)
    # A weight of zero hides infinite scores of ignored rows.
    losses = call.op("Where", call.op("Equal", weights, zero), zero, call.op("Neg", call.op("Mul", picked, weights)))
    reduction = call.argument("reduction")
    total = call.op("ReduceSum", weights, keepdims=0)
    if reduction == 0:
        return call.build.cast(losses, call.out.dtype), call.build.constant(0.0, call.output(1).dtype)
    loss = call.op("ReduceSum", losses, keepdims=0)
    if reduction == _MEAN:
        loss = call.op("Div", loss, total)
    return call.build.cast(loss, call.out.dtype), call.build.cast(total, call.output(1).dtype)


@lowers("nll_loss_backward", _RULE)
def _nll_backward(call: Call) -> Value:
    dtype = torch.float64 if call.out.dtype is torch.float64 else torch.float32
    classes, weights = _weights(call, dtype)
    grad = call.operand("grad_output", dtype)
    if call.argument("reduction") == _MEAN:
        grad = call.op("Div", grad, call.operand("total_weight", dtype))
    zero = call.build.constant(0.0, dtype)
    rows = call.op("Where", call.op("Equal", weights, zero), zero, call.op("Neg", call.op("Mul", grad, weights)))
    source = call.tensor("self")
    zeros = call.build.filled(call.build.shape(source), 0, dtype)
    last = call.build.integers([1])
    column, updates = call.op("Unsqueeze", classes, last), call.op("Unsqueeze", rows, last)
    return call.build.cast(call.op("ScatterElements", zeros, column, updates, axis=1), call.out.dtype)
