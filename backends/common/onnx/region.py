"""Lower a region: from its fx graph and judged ops to one ONNX model.

Place: called by ONNX backends when they compile.
Input: a ``contracts.Region`` of ops that are in the table. Output: ``LoweredRegion``.
Invariants: weights stay inputs, in the order in which they lie in memory (``storage``); symbolic sizes stay symbolic,
so one model serves all sizes; outputs are in the order of the region and none of them is an input.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from mixbackend.backends.common.onnx.builder import GraphBuilder, Target, Value
from mixbackend.backends.common.onnx.call import Call, Emitted
from mixbackend.backends.common.onnx.errors import LoweringError
from mixbackend.backends.common.onnx.narrow import views_to_write
from mixbackend.backends.common.onnx.prune import prune
from mixbackend.backends.common.onnx.storage import stored_order
from mixbackend.backends.common.onnx.symbolic import emit_number
from mixbackend.backends.common.onnx.table import TABLE
from mixbackend.contracts import OpView, Region, RegionInput, TensorMeta

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class LoweredRegion:
    """A region as an ONNX model.

    Attributes:
        model: the model; weights are inputs.
        inputs: (name in the model, element type) per region input; a weight's axes are in ``stored_order``.
        outputs: names in the model per region output.
    """

    model: onnx.ModelProto
    inputs: tuple[tuple[str, torch.dtype], ...]
    outputs: tuple[str, ...]


def lower_region(region: Region, target: Target) -> LoweredRegion:
    """Write a region as ONNX.

    Raises:
        LoweringError: an op has no entry in the table, or a form that its rule should have refused.
    """
    return _Walk(region, target).run()


class _Walk:
    """One pass over a region's graph."""

    def __init__(self, region: Region, target: Target) -> None:
        self._region = region
        self._build = GraphBuilder(target)
        self._values: dict[str, Emitted] = {}
        self._views = views_to_write(region)
        self._inputs: list[tuple[str, torch.dtype]] = []

    def run(self) -> LoweredRegion:
        outputs: tuple[str, ...] = ()
        placeholders = iter(self._region.inputs)
        for node in self._region.graph_module.graph.nodes:
            if node.op == "placeholder":
                self._values[node.name] = self._input(node, next(placeholders))
            elif node.op == "call_function":
                self._values[node.name] = self._node(node)
            elif node.op == "output":
                outputs = self._outputs(node.args[0])
            else:
                raise LoweringError(f"a region holds {node.format_node()}")
        model = self._build.model(self._region.key[:16])
        prune(model)
        return LoweredRegion(model, tuple(self._inputs), outputs)

    def _input(self, node: torch.fx.Node, item: RegionInput) -> Value:
        name, meta, order = f"in{len(self._inputs)}", item.meta, stored_order(item)
        if not isinstance(meta, TensorMeta):
            value = self._build.input(name, _number_type(node.meta.get("val")), ())
        elif order is None:
            value = self._build.input(name, meta.dtype, meta.shape)
        else:
            stored = self._build.input(name, meta.dtype, tuple(meta.shape[axis] for axis in order))
            back = [order.index(axis) for axis in range(meta.rank)]
            value = self._build.op("Transpose", stored, perm=back).shaped(meta.shape)
        self._inputs.append((name, value.dtype))
        return value

    def _node(self, node: torch.fx.Node) -> Emitted:
        view = self._views.get(node.name)
        if node.target is operator.getitem:
            return self._part(node)
        if view is None:
            return emit_number(self._build, node, lambda source: self._values[source.name])
        entry = TABLE.get(view.op)
        if entry is None:
            raise LoweringError(f"{view.op} has no entry in the table")
        call = Call(view, self._build, self._values, _used_outputs(node))
        return _with_shapes(entry.emit(call), view)

    def _part(self, node: torch.fx.Node) -> Value:
        source, position = node.args
        assert isinstance(source, torch.fx.Node) and isinstance(position, int)
        whole = self._values[source.name]
        part = whole[position] if isinstance(whole, tuple) else None
        if part is None:
            raise LoweringError(f"{node.format_node()} reads a result that was not written")
        return part

    def _outputs(self, listed: Any) -> tuple[str, ...]:
        names: list[str] = []
        for node, expected in zip(listed, self._region.outputs, strict=True):
            value = self._values[node.name]
            if not isinstance(value, Value):
                raise LoweringError(f"output {node.name} is several values")
            if value.dtype is not expected.meta.dtype:
                raise LoweringError(f"output {node.name} is {value.dtype}, expected {expected.meta.dtype}")
            names.append(self._build.output(value, expected.meta))
        return tuple(names)


def _number_type(value: Any) -> torch.dtype:
    if isinstance(value, (bool, torch.SymBool)):
        return torch.bool
    return torch.int64 if isinstance(value, (int, torch.SymInt)) else torch.float64


def _used_outputs(node: torch.fx.Node) -> frozenset[int]:
    positions = (user.args[1] for user in node.users if user.target is operator.getitem)
    return frozenset(position for position in positions if isinstance(position, int))


def _with_shapes(emitted: Emitted, view: OpView) -> Emitted:
    """Results under the sizes that torch knows them by; their types must be torch's."""
    if isinstance(emitted, Value):
        return _checked(emitted, view, 0)
    return tuple(None if item is None else _checked(item, view, index) for index, item in enumerate(emitted))


def _checked(value: Value, view: OpView, index: int) -> Value:
    meta = view.outputs[index]
    if not isinstance(meta, TensorMeta):
        return value
    if value.dtype is not meta.dtype:
        raise LoweringError(f"{view.op} was written with {value.dtype}, torch gives {meta.dtype}")
    return value.shaped(meta.shape)
