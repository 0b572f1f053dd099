"""The kernel table against the installed runtime: every pair opens a session."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest
import torch

from mixbackend.backends.common.onnx.builder import GraphBuilder, Target
from mixbackend.backends.onnxruntime.kernels import KERNELS, TARGET

_I, _T = torch.int64, None
# Inputs by rank and type (None: the type in question), results, attributes.
_FORMS: dict[str, tuple[list[tuple[int, torch.dtype | None]], int, dict[str, object]]] = {
    "Where": ([(1, torch.bool), (1, _T), (1, _T)], 1, {}),
    "Concat": ([(1, _T), (1, _T)], 1, {"axis": 0}),
    "Gather": ([(1, _T), (1, _I)], 1, {}),
    "GatherElements": ([(1, _T), (1, _I)], 1, {}),
    "GatherND": ([(2, _T), (2, _I)], 1, {}),
    "ScatterElements": ([(1, _T), (1, _I), (1, _T)], 1, {}),
    "ScatterElements:add": ([(1, _T), (1, _I), (1, _T)], 1, {"reduction": "add"}),
    "Slice": ([(1, _T), (1, _I), (1, _I), (1, _I)], 1, {}),
    "Split": ([(1, _T), (1, _I)], 1, {}),
    "Pad": ([(1, _T), (1, _I), (0, _T)], 1, {}),
    "CumSum": ([(1, _T), (0, _I)], 1, {}),
    "Range": ([(0, _T), (0, _T), (0, _T)], 1, {}),
    "ConstantOfShape": ([(1, _I)], 1, {}),
    "Trilu": ([(2, _T)], 1, {}),
    "Attention": ([(4, _T), (4, _T), (4, _T)], 1, {}),
    "Gemm": ([(2, _T), (2, _T), (2, _T)], 1, {}),
    "Conv": ([(4, _T), (4, _T)], 1, {}),
    "ConvTranspose": ([(4, _T), (4, _T)], 1, {}),
    "MaxPool": ([(4, _T)], 2, {"kernel_shape": [2, 2]}),
    "AveragePool": ([(4, _T)], 1, {"kernel_shape": [2, 2]}),
    "BatchNormalization": ([(4, _T), (1, _T), (1, _T), (1, _T), (1, _T)], 1, {}),
    "LayerNormalization": ([(2, _T), (1, _T), (1, _T)], 1, {}),
}
_WITH_INTEGERS = "Reshape Expand Tile Unsqueeze Squeeze ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd"
_FORMS.update({name: ([(1, _T), (1, _I)], 1, {}) for name in _WITH_INTEGERS.split()})
_TWO = "Add Sub Mul Div Mod Pow Max Min Equal Less Greater LessOrEqual GreaterOrEqual MatMul And Or Xor"
_FORMS.update({name: ([(1, _T), (1, _T)], 1, {}) for name in f"{_TWO} BitwiseAnd BitwiseOr BitwiseXor".split()})


def _model(operator: str, dtype: torch.dtype) -> bytes:
    inputs, outputs, attributes = _FORMS.get(operator, ([(1, _T)], 1, {}))
    build = GraphBuilder(Target(TARGET.opset, TARGET.ir_version, {}))
    name = operator.partition(":")[0]
    if name == "ConstantOfShape":
        build.filled(build.input("in0", torch.int64, (2,)), 1, dtype)
    else:
        values = [
            build.input(f"in{index}", dtype if kind is None else kind, (2,) * rank)
            for index, (rank, kind) in enumerate(inputs)
        ]
        keywords = {"to": onnx.TensorProto.FLOAT, **attributes} if name == "Cast" else attributes
        build.node(name, values, outputs, torch.float32 if name == "Cast" else torch.int64, **keywords)
    model = build.model("kernel")
    names = list(model.graph.node[-1].output)
    model.graph.output.extend(onnx.ValueInfoProto(name=result) for result in names)
    return model.SerializeToString()


@pytest.mark.parametrize("operator", sorted(KERNELS))
def test_claimed_kernels_exist(operator):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    for dtype in sorted(KERNELS[operator], key=str):
        onnxruntime.InferenceSession(_model(operator, dtype), options, providers=["CPUExecutionProvider"])


def test_a_missing_kernel_is_noticed():
    """The probe can fail: there is no error function of doubles."""
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented):
        onnxruntime.InferenceSession(_model("Erf", torch.float64), providers=["CPUExecutionProvider"])
