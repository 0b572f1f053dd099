"""Compile and load: a region becomes a session.

Place: behind ``OnnxRuntimeBackend.compile`` and ``load``; the only modules that import the runtime are below this one.
Input: a region, or a region and the bytes of its model. Output: ``CompiledRegion``.
"""

from __future__ import annotations

import onnx
import torch

from mixbackend.backends.common.onnx import lower_region
from mixbackend.backends.onnxruntime.kernels import TARGET
from mixbackend.backends.onnxruntime.session import open_session, runner
from mixbackend.contracts import CompiledRegion, Condition, Region, Size, SymbolicSize, TensorMeta

_LONGEST_TEXT = 200_000


def compile_region(region: Region) -> CompiledRegion:
    """Lower a region and open a session for it.

    Raises:
        LoweringError: the region has no ONNX form although its ops were claimed.
        Exception: the runtime refuses the model.
    """
    model = lower_region(region, TARGET).model
    return _compiled(region, model.SerializeToString(), _readable(model))


def load_region(region: Region, artifact: bytes) -> CompiledRegion:
    """Open a session for a stored model.

    Raises:
        ValueError: the model is not one of this region.
        Exception: the bytes are no model, or the runtime refuses it.
    """
    model = onnx.load_model_from_string(artifact)
    return _compiled(region, artifact, _readable(model))


def _compiled(region: Region, serialised: bytes, source: str) -> CompiledRegion:
    session = open_session(serialised, static=not region.dynamic, doubles=_has_doubles(region))
    inputs = [(item.name, _TYPES[item.type]) for item in session.get_inputs()]
    outputs = [(item.name, _TYPES[item.type]) for item in session.get_outputs()]
    if [dtype for _, dtype in outputs] != [item.meta.dtype for item in region.outputs]:
        raise ValueError("the model's outputs are not those of the region")
    if len(inputs) != len(region.inputs):
        raise ValueError(f"the model takes {len(inputs)} inputs, the region {len(region.inputs)}")
    run = runner(session, inputs, _kinds(region), outputs)
    return CompiledRegion(
        run=run,
        artifact=serialised,
        source=source,
        preconditions=_preconditions(region),
        strides="contiguous",
    )


_TYPES = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(bfloat16)": torch.bfloat16,
    "tensor(double)": torch.float64,
    "tensor(int8)": torch.int8,
    "tensor(uint8)": torch.uint8,
    "tensor(int16)": torch.int16,
    "tensor(int32)": torch.int32,
    "tensor(int64)": torch.int64,
    "tensor(bool)": torch.bool,
}


def _has_doubles(region: Region) -> bool:
    metas = (meta for view in region.views for meta in view.output_tensors)
    return any(meta.dtype is torch.float64 for meta in metas)


def _kinds(region: Region) -> list[str]:
    kinds: list[str] = []
    for item in region.inputs:
        if not isinstance(item.meta, TensorMeta):
            kinds.append("number")
        else:
            kinds.append("weight" if item.role.is_weight else "tensor")
    return kinds


def _preconditions(region: Region) -> tuple[Condition, ...]:
    """The runtime's kernels are not held against empty tensors: sizes that may be zero are checked at each call."""
    found: dict[Size, None] = {}
    for item in region.inputs:
        for size in item.meta.shape if isinstance(item.meta, TensorMeta) else ():
            if isinstance(size, SymbolicSize) and size.lower < 1:
                found[size] = None
    return tuple(Condition(size, "at_least", 1) for size in found)


def _readable(model: onnx.ModelProto) -> str:
    text = onnx.printer.to_text(model)
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{text[:_LONGEST_TEXT]}\n# {len(text) - _LONGEST_TEXT} more characters\n"
