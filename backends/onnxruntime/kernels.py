"""Which element types ONNX Runtime's CPU kernels take.

Place: given to the lowering, which computes in a wider type where a kernel is missing.
Invariants: holds for every supported release (1.23 on); ``tests/onnxruntime/test_kernels.py`` opens a session for every
pair, so a release that drops a kernel is noticed. ``float16`` counts as taken where the runtime itself inserts casts.
"""

from __future__ import annotations

import onnxruntime
import torch

from mixbackend.backends.common.onnx import Target

_LETTERS = {
    "f": torch.float32,
    "h": torch.float16,
    "e": torch.bfloat16,
    "d": torch.float64,
    "b": torch.int8,
    "B": torch.uint8,
    "s": torch.int16,
    "i": torch.int32,
    "l": torch.int64,
    "?": torch.bool,
}

_ALL = "fhedbBsil?"
_ROWS = {
    _ALL: "Identity Reshape Unsqueeze Squeeze Transpose Concat Slice Split Gather GatherElements GatherND "
    "ScatterElements Shape ConstantOfShape Cast",
    "fdbBsil": "ScatterElements:add",
    "fhdbBsil": "Add Sub Mul Div Mod Abs Less Greater LessOrEqual GreaterOrEqual",
    "fhdbBsil?": "Equal Expand Tile",
    "fhdbBil?": "Pad ReduceMax ReduceMin",
    "fhdbBil": "ArgMax ArgMin",
    "fhdbsil": "Neg",
    "fhedbBsil": "Sign",
    "fhed": "IsNaN IsInf",
    "fhdil": "Pow Max Min ReduceSum ReduceMean ReduceProd ReduceL1 ReduceL2 MatMul CumSum",
    "fhdBil": "Where",
    "fhd": "Sqrt Exp Log Tanh Sigmoid Floor Ceil Round Reciprocal Sin Softmax LogSoftmax Gemm BatchNormalization "
    "LayerNormalization",
    "fh": "Relu Clip HardSwish HardSigmoid Erf Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Softplus Gelu Conv "
    "ConvTranspose AveragePool Attention",
    "fhdbB": "MaxPool",
    "bBsil": "BitwiseNot BitwiseAnd BitwiseOr BitwiseXor",
    "?": "Not And Or Xor",
    "dfil": "Range",
    "fhdl?": "Trilu",
}

KERNELS: dict[str, frozenset[torch.dtype]] = {
    operator: frozenset(_LETTERS[letter] for letter in letters)
    for letters, operators in _ROWS.items()
    for operator in operators.split()
}
"""Element types per ONNX operator; an operator that the lowering writes and that is missing here is a fault."""

_ATTENTION_SINCE = (1, 31)
"""First release with an ``Attention`` that is held against torch's here, rows that see nothing included."""


def target(version: tuple[int, ...]) -> Target:
    """What the lowering writes for a release of the runtime.

    Operator set 20 is the first with ``Gelu``, and 1.23 knows all of it; 23 is the first with ``Attention``, which
    takes a quarter less time than products and a softmax.
    """
    if version >= _ATTENTION_SINCE:
        return Target(opset=23, ir_version=11, kernels=KERNELS, attention=True)
    return Target(opset=20, ir_version=9, kernels=KERNELS)


VERSION = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
"""The installed release."""

TARGET = target(VERSION)
"""For the installed release."""
