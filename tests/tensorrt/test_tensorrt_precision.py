"""Networks without types: what the model computes in float32 stays so, and nothing else is held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace

import onnx
from onnx import TensorProto, helper

from mixbackend.backends.tensorrt.precision import float32_by_name, hold_float32

DataType = Enum("DataType", "FLOAT HALF INT32")
LayerType = Enum("LayerType", "ELEMENTWISE CAST CONSTANT SHAPE")
TRT = SimpleNamespace(DataType=DataType, LayerType=LayerType)


@dataclass
class Tensor:
    """As release 8 tells of it: float32 unless it is no number of that kind."""

    name: str
    dtype: DataType = DataType.FLOAT
    is_shape_tensor: bool = False


@dataclass
class Layer:
    """A layer that can be asked and constrained as a real one can."""

    reads: Sequence[Tensor]
    makes: Sequence[Tensor]
    type: LayerType = LayerType.ELEMENTWISE
    precision: DataType | None = None
    held: dict[int, DataType] = field(default_factory=dict)

    @property
    def num_inputs(self) -> int:
        return len(self.reads)

    @property
    def num_outputs(self) -> int:
        return len(self.makes)

    def get_input(self, place: int) -> Tensor:
        return self.reads[place]

    def get_output(self, place: int) -> Tensor:
        return self.makes[place]

    def set_output_type(self, place: int, dtype: DataType) -> None:
        self.held[place] = dtype


def hold(*layers: Layer, **float32: bool) -> list[bool]:
    network = SimpleNamespace(num_layers=len(layers), get_layer=lambda index: layers[index])
    hold_float32(network, TRT, float32)
    assert all((layer.precision is DataType.FLOAT) == bool(layer.held) for layer in layers)
    return [layer.precision is DataType.FLOAT for layer in layers]


def test_types_of_the_model_count_and_not_what_the_network_tells():
    x, y, z = Tensor("x"), Tensor("y"), Tensor("z")
    assert hold(Layer([x], [y]), Layer([y], [z]), x=False, y=False, z=True) == [False, True]


def test_layers_that_the_parser_adds_are_held_with_what_reads_them():
    x, within, y, other, z = map(Tensor, ("x", "(Unnamed Layer* 1)", "y", "(Unnamed Layer* 3)", "z"))
    layers = (Layer([x], [within]), Layer([within], [y]), Layer([x], [other]), Layer([other], [z]))
    assert hold(*layers, x=True, y=True, z=False) == [True, True, False, False]


def test_casts_constants_and_integers_are_free():
    half, wide, one, size = Tensor("half"), Tensor("wide"), Tensor("one"), Tensor("size", DataType.INT32)
    layers = (
        Layer([half], [wide], LayerType.CAST),
        Layer([], [one], LayerType.CONSTANT),
        Layer([half], [size]),
        Layer([half], [Tensor("shape", is_shape_tensor=True)]),
    )
    assert hold(*layers, half=False, wide=True, one=True, size=True, shape=True) == [False] * 4


def test_a_cast_to_float32_does_not_hold_what_it_reads():
    x, half, wide = Tensor("x"), Tensor("(Unnamed Layer* 0)"), Tensor("wide")
    assert hold(Layer([x], [half]), Layer([half], [wide], LayerType.CAST), x=False, wide=True) == [False, False]


def test_types_by_name_are_those_of_inputs_weights_and_all_between():
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Exp", ["wide"], ["y"]),
        helper.make_node("Shape", ["y"], ["sizes"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [2])],
        [helper.make_tensor_value_info("sizes", TensorProto.INT64, [1])],
        [helper.make_tensor("w", TensorProto.FLOAT16, [1], [2.0])],
    )
    model: onnx.ModelProto = helper.make_model(graph)
    assert float32_by_name(model) == {"x": False, "w": False, "scaled": False, "wide": True, "y": True}
