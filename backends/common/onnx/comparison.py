"""Comparisons, logic and bits.

Place: a family of the lowering table. Comparisons promote as torch does; results are always ``bool``.
"""

from __future__ import annotations

import torch

from mixbackend.backends.common.onnx.builder import Value
from mixbackend.backends.common.onnx.call import Call
from mixbackend.backends.common.onnx.dtypes import EVERY, REALS, WHOLES
from mixbackend.backends.common.onnx.table import Emitter, enter, lowers
from mixbackend.contracts import OpRule

_EVERY = OpRule(dtypes=EVERY)


def _compare(operator: str, negate: bool = False) -> Emitter:
    def emit(call: Call) -> Value:
        dtype = call.promoted("self", "other")
        if dtype is torch.bool and operator != "Equal":
            dtype = torch.int32
        result = call.op(operator, call.operand("self", dtype), call.operand("other", dtype))
        return call.op("Not", result) if negate else result

    return emit


for _name, _operator in (("lt", "Less"), ("le", "LessOrEqual"), ("gt", "Greater"), ("ge", "GreaterOrEqual")):
    enter(f"{_name}.Tensor {_name}.Scalar", _EVERY, _compare(_operator))
enter("eq.Tensor eq.Scalar", _EVERY, _compare("Equal"))
enter("ne.Tensor ne.Scalar", _EVERY, _compare("Equal", negate=True))


def _logical(operator: str) -> Emitter:
    return lambda call: call.op(operator, call.operand("self", torch.bool), call.operand("other", torch.bool))


enter("logical_and", _EVERY, _logical("And"))
enter("logical_or", _EVERY, _logical("Or"))
enter("logical_xor", _EVERY, _logical("Xor"))


@lowers("logical_not", _EVERY)
def _logical_not(call: Call) -> Value:
    return call.op("Not", call.operand("self", torch.bool))


def _bitwise(logical: str, bits: str) -> Emitter:
    def emit(call: Call) -> Value:
        dtype = call.out.dtype
        operator = logical if dtype is torch.bool else bits
        return call.op(operator, call.operand("self", dtype), call.operand("other", dtype))

    return emit


_BITS = OpRule(dtypes=WHOLES | {torch.bool})
enter("bitwise_and.Tensor bitwise_and.Scalar", _BITS, _bitwise("And", "BitwiseAnd"))
enter("bitwise_or.Tensor bitwise_or.Scalar", _BITS, _bitwise("Or", "BitwiseOr"))
enter("bitwise_xor.Tensor bitwise_xor.Scalar", _BITS, _bitwise("Xor", "BitwiseXor"))


@lowers("bitwise_not", _BITS)
def _bitwise_not(call: Call) -> Value:
    value = call.tensor("self")
    return call.op("Not" if value.dtype is torch.bool else "BitwiseNot", value)


@lowers("isnan", OpRule(dtypes=REALS | {torch.bool}))
def _isnan(call: Call) -> Value:
    return call.op("IsNaN", call.tensor("self"))


@lowers("isinf", OpRule(dtypes=REALS | {torch.bool}))
def _isinf(call: Call) -> Value:
    return call.op("IsInf", call.tensor("self"))
