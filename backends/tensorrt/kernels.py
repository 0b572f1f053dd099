"""Which ONNX operators TensorRT's parser takes, and in which element types.

Place: given to the shared lowering, which computes in a wider type where a kernel is missing, and to verdicts, which
hold what the lowering would write against it.
Source: the operator matrices of the parser for 8.6 and 10. Release 8 narrows int64 to int32 inside of engines, so what
takes one takes the other.
Invariants: an operator that the lowering may write and that is missing here is refused.
"""

from __future__ import annotations

from functools import cache

import torch

from mixbackend.backends.common.onnx import Target
from mixbackend.backends.tensorrt.versions import Release

OPSET = 17
"""The newest operator set that 8.6 knows; later releases read it as well."""
_IR_VERSION = 8

_FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16})
_INTEGERS = frozenset({torch.int32, torch.int64})
_BOOLEANS = frozenset({torch.bool})

_REDUCTIONS = "ReduceMax ReduceMin ReduceSum ReduceMean ReduceProd ReduceL1 ReduceL2"
_ROWS = (
    (
        _FLOATS | _INTEGERS | _BOOLEANS,
        "Identity Reshape Unsqueeze Squeeze Transpose Concat Slice Split Gather GatherElements GatherND Shape "
        "ConstantOfShape Cast Expand Tile Where Trilu",
    ),
    (
        _FLOATS | _INTEGERS,
        "Add Sub Mul Div Mod Abs Neg Sign Max Min Less Greater LessOrEqual GreaterOrEqual Equal Pad ScatterElements "
        "ArgMax ArgMin",
    ),
    (
        _FLOATS,
        "Sqrt Exp Log Tanh Sigmoid Floor Ceil Round Reciprocal Erf Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh "
        "Atanh Softplus Relu HardSwish HardSigmoid Softmax LogSoftmax MatMul Gemm Conv ConvTranspose AveragePool "
        "MaxPool BatchNormalization LayerNormalization CumSum IsNaN",
    ),
    # In this operator set it takes no halves.
    (frozenset({torch.float32}), "IsInf"),
    (_BOOLEANS, "Not And Or Xor"),
    (_INTEGERS, "Range"),
)
_FLOATS_UNTIL_10 = f"Pow {_REDUCTIONS}"
"""These take integers, too, from 10 on."""
_SINCE_10 = "ScatterElements:add"
_NEVER = "ScatterElements:mul ScatterElements:max ScatterElements:min"


@cache
def target(release: Release) -> Target:
    """What the lowering writes for a release."""
    kinds = release.types | {torch.int64}
    rows = [
        *_ROWS,
        (_FLOATS | _INTEGERS if release.strongly_typed else _FLOATS, _FLOATS_UNTIL_10),
        (_FLOATS | _INTEGERS if release.strongly_typed else frozenset(), _SINCE_10),
        (frozenset(), _NEVER),
    ]
    kernels = {operator: frozenset(types & kinds) for types, operators in rows for operator in operators.split()}
    return Target(OPSET, _IR_VERSION, kernels, half_formulas=True)
