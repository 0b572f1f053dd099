"""What a network without types must compute in float32.

Place: in the process that builds engines, between the parser and the builder. Input: the model, the network that was
parsed from it. Output: layers that are held to float32; the builder may compute all others in float16.
Method: until release 10 a network knows no types between its inputs and its results: whatever the model says, it tells
float32 of everything that computes. So the model's own types count, by the names that the parser gives to results. What
the parser adds in between has names of its own, and computes in float32 if what reads it does.
Non-goals: networks with types, which follow the model by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx
from onnx import shape_inference

_FLOATS = {onnx.TensorProto.FLOAT: True, onnx.TensorProto.FLOAT16: False}


def float32_by_name(model: onnx.ModelProto) -> Mapping[str, bool]:
    """Whether a tensor of the model is float32, for those that are that or float16."""
    graph = shape_inference.infer_shapes(model).graph
    values = ((item.name, item.type.tensor_type.elem_type) for item in (*graph.input, *graph.value_info, *graph.output))
    weights = ((item.name, item.data_type) for item in graph.initializer)
    return {name: _FLOATS[kind] for name, kind in (*values, *weights) if kind in _FLOATS}


def hold_float32(network: Any, trt: Any, float32: Mapping[str, bool]) -> None:
    """Hold layers to float32 that give float32 in the model.

    Args:
        network: as it was parsed.
        trt: the module ``tensorrt``.
        float32: of the model, see ``float32_by_name``.
    """
    free = {trt.LayerType.CONSTANT, trt.LayerType.CAST, trt.LayerType.SHAPE}
    read: set[str] = set()
    # The layers that read a tensor come after the one that makes it.
    for index in reversed(range(network.num_layers)):
        layer = network.get_layer(index)
        made = [layer.get_output(place) for place in range(layer.num_outputs)]
        wide = [place for place, tensor in enumerate(made) if _is_wide(tensor, trt, float32, read)]
        if not wide or layer.type in free:
            continue
        layer.precision = trt.DataType.FLOAT
        for place in wide:
            layer.set_output_type(place, trt.DataType.FLOAT)
        read.update(_names(layer.get_input(place) for place in range(layer.num_inputs)))


def _is_wide(tensor: Any, trt: Any, float32: Mapping[str, bool], read: set[str]) -> bool:
    if tensor.dtype not in (trt.DataType.FLOAT, trt.DataType.HALF) or tensor.is_shape_tensor:
        return False
    return float32.get(tensor.name, tensor.name in read)


def _names(tensors: Iterable[Any]) -> Iterable[str]:
    return (tensor.name for tensor in tensors if tensor is not None)
