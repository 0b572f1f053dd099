"""A whole region as stages: its inputs, its ops one after the other, and what leaves.

Place: the entry of ``lower``; ``lowering`` does op by op what is called from here.
Input: a region. Output: a ``StageGraph``.
Invariants: an output is a stage of its own, or a view of an input; what is written into inputs comes after the outputs.
"""

from __future__ import annotations

from typing import Any

import sympy

from mixbackend.backends.codegen.ir.stages import (
    AliasOutput,
    GraphOutput,
    Map,
    NumberInput,
    StageGraph,
    StridedInput,
    TensorType,
)
from mixbackend.backends.codegen.ir.templates import ATTENTION
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError
from mixbackend.backends.codegen.lower.sizes import import_size
from mixbackend.backends.codegen.lower.tensor import Tensor
from mixbackend.backends.common.writing import refuse_writes
from mixbackend.contracts import Region, RegionOutput, SymbolicSize, TensorMeta


def lower_region(region: Region, drawing_threads: int | None = None) -> StageGraph:
    """Lower a whole region.

    Args:
        drawing_threads: see ``Lowering``.

    Raises:
        RefusedError: an op is not covered; ``judge`` would have said so.
    """
    lowering = Lowering(drawing_threads)
    inputs: list[StridedInput | NumberInput] = []
    for item in region.inputs:
        if isinstance(item.meta, TensorMeta):
            inputs.append(lowering.input(item.name, item.meta))
            continue
        inputs.append(_number(lowering, item.name, item.meta))
    refusal = refuse_writes(region.views, (output.name for output in region.outputs))
    if refusal is not None:
        raise RefusedError(refusal.code, refusal.detail)
    _lower_ops(lowering, region)
    outputs = [_output(lowering, output, region) for output in region.outputs]
    strides = {item.name: item.strides for item in inputs if isinstance(item, StridedInput)}
    for name, tensor in lowering.contents.items():
        final = _final(lowering, f"{name}.new", lowering.value(name), (tensor,))
        outputs.append(GraphOutput(name, final, strides[name], destination=name))
    inputs += lowering.random_state if lowering.draws != 0 else ()
    types, stages = tuple(lowering.types.items()), tuple(lowering.stages)
    return StageGraph(tuple(inputs), types, stages, tuple(outputs), lowering.draws)


def _lower_ops(lowering: Lowering, region: Region) -> None:
    """Op by op; what attention holds together is lowered where its last op stands. Products with quantised weights are
    op by op, too: the schedule finds them."""
    written = [names for pattern, names in region.matches if pattern.startswith(ATTENTION)]
    if not written:
        for view in region.views:
            lowering.lower(view)
        return
    # Rules of patterns know this module.
    from mixbackend.backends.codegen.lower.written_attention import written_attention

    views = {view.node.name: view for view in region.views}
    matches = {names[-1]: [views[name] for name in names] for names in written}
    inside = {name for names in written for name in names[:-1]}
    for name, view in views.items():
        if name in matches:
            lowering.lower_match(matches[name], written_attention)
        elif name not in inside:
            lowering.lower(view)


def _number(lowering: Lowering, name: str, meta: Any) -> NumberInput:
    """A number that comes in: a size symbol where it is one, otherwise a symbol of its own."""
    expression = import_size(meta) if isinstance(meta, (int, SymbolicSize)) else None
    is_symbol = expression is not None and expression.is_Symbol
    symbol = expression if is_symbol else sympy.Symbol(f"n_{name}", real=True)
    lowering.bind(name, expression if expression is not None else symbol)
    return NumberInput(name, symbol)


def _output(lowering: Lowering, output: RegionOutput, region: Region) -> GraphOutput | AliasOutput:
    """Give an output a tensor of its own, or say which input it is a view of."""
    tensor = lowering.value(output.name)
    strides = tuple(map(import_size, output.meta.stride))
    if output.alias_of is not None and tensor.strided is not None:
        view = tensor.strided
        return AliasOutput(output.name, view.input, tensor.sizes, view.strides, view.offset)
    if output.alias_of is not None and region.inputs[output.alias_of].name in lowering.contents:
        raise RefusedError("effect", f"whether {output.name} shares storage that is written into is not known")
    return GraphOutput(output.name, _final(lowering, f"{output.name}.out", tensor, (output.name,)), strides)


def _final(lowering: Lowering, name: str, tensor: Tensor, origins: tuple[str, ...]) -> str:
    """A stage that nothing in the graph reads, with the values of a tensor."""
    loops = lowering.loops(tensor.sizes)
    value = lowering.cast(tensor.at(tuple(loop.index for loop in loops)), tensor.compute)
    lowering.types[name] = TensorType(tensor.sizes, tensor.dtype)
    lowering.stages.append(Map(name, loops, value, origins))
    return name
