"""The meaning of stages: run a ``StageGraph`` with torch.

Place: the oracle of the code generator's tests; what ``schedule`` and the targets make of a graph must give the same.
Input: a graph and actual inputs of any strides; those that the graph writes into are changed. Output: its outputs,
strided as declared.
Invariants: reads and writes outside a tensor are errors, also where the value would not matter; nothing is fused,
every target exists in its storage type.
Non-goals: speed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import sympy
import torch

from mixbackend.backends.codegen.interpret.folds import fold, scan
from mixbackend.backends.codegen.interpret.indices import Value, Values, evaluate_index, evaluate_size
from mixbackend.backends.codegen.interpret.points import Element, Points, as_positions, find_outside
from mixbackend.backends.codegen.interpret.symbols import Input, solve_symbols
from mixbackend.backends.codegen.interpret.templates import cropped, evaluate_template
from mixbackend.backends.codegen.ir.scalar import Expr, Load
from mixbackend.backends.codegen.ir.stages import (
    AliasOutput,
    Concatenate,
    GraphOutput,
    Loop,
    Map,
    Reduce,
    Scan,
    Scatter,
    Stage,
    StageGraph,
    StridedInput,
    Template,
    TensorType,
    destinations,
    targets_of,
)
from mixbackend.contracts import IrError


@torch.no_grad()
def interpret_stages(graph: StageGraph, inputs: Sequence[Input]) -> list[torch.Tensor]:
    """Run a graph.

    Args:
        inputs: tensors and numbers in the order of ``graph.inputs``.

    Raises:
        InputRangeError: a value had to be corrected; nothing is written into an input then.
        IrError: the graph is wrong: an index out of range, a value of another type than stated, an unknown symbol.
    """
    values = solve_symbols(graph.inputs, inputs)
    tensors = {
        item.name: actual for item, actual in zip(graph.inputs, inputs, strict=True) if isinstance(actual, torch.Tensor)
    }
    run = _Run(dict(graph.types), tensors, values)
    for stage in graph.stages:
        run.stage(stage)
    declared = {item.name: item for item in graph.inputs if isinstance(item, StridedInput)}
    returned = [item for item in graph.outputs if isinstance(item, AliasOutput) or item.destination is None]
    results = [
        run.alias(output, declared) if isinstance(output, AliasOutput) else run.output(output) for output in returned
    ]
    for tensor, destination in destinations(graph).items():
        run.write(tensor, destination)
    return results


class _StagePoints(Points):
    """Points of one stage, one dimension per loop: what they read are whole tensors."""

    def __init__(
        self,
        loops: Sequence[tuple[sympy.Symbol, int]],
        known: Values,
        tensors: dict[str, torch.Tensor],
        stage: Stage,
    ) -> None:
        indices = {}
        for place, (symbol, extent) in enumerate(loops):
            others = (1,) * (len(loops) - place - 1)
            indices[symbol] = torch.arange(extent, dtype=torch.int64).reshape(extent, *others)
        super().__init__([extent for _, extent in loops], {**known, **indices})
        self._tensors = tensors
        self._stage = stage

    def element(self, node: Element, symbols: Values, mask: torch.Tensor | None) -> torch.Tensor:
        if not isinstance(node, Load):
            raise IrError("a stage reads a buffer", where=f"{node}\n{self._stage}")
        tensor = self._tensors.get(node.tensor)
        if tensor is None:
            raise IrError(f"{node.tensor} is read before it is defined", where=f"{node}\n{self._stage}")
        if tensor.dim() != len(node.index):
            raise IrError(f"{node.tensor} has {tensor.dim()} dimensions", where=f"{node}\n{self._stage}")
        positions = [as_positions(evaluate_index(index, symbols)) for index in node.index]
        wrong, inside = find_outside(positions, tensor.shape, mask)
        if wrong:
            raise IrError(
                f"{node.tensor}{list(tensor.shape)} is read at {list(wrong)}, out of range",
                where=f"{node}\n{self._stage}",
            )
        return _gather(tensor, positions, inside, mask, node).to(node.dtype)

    def local(self, name: str) -> torch.Tensor:
        raise IrError(f"a stage has no local values, it uses {name}", where=str(self._stage))


def _gather(
    tensor: torch.Tensor, positions: list[torch.Tensor], inside: torch.Tensor, mask: torch.Tensor | None, node: Load
) -> torch.Tensor:
    """Elements at positions; ``node.other`` where the mask is false."""
    if mask is None:
        return tensor[tuple(positions)] if positions else tensor
    other = torch.tensor(node.other, dtype=node.dtype)
    wanted = mask & inside
    if not bool(wanted.any()):
        return other.expand(torch.broadcast_shapes(wanted.shape, *(position.shape for position in positions)))
    safe = tuple(torch.where(wanted, position, 0) for position in positions)
    read = tensor[safe] if safe else tensor
    return torch.where(wanted, read.to(node.dtype), other)


class _Run:
    """One run: tensors by name and the values of size symbols."""

    def __init__(
        self, types: dict[str, TensorType], tensors: dict[str, torch.Tensor], values: dict[sympy.Symbol, Value]
    ) -> None:
        self._types = types
        self._tensors = tensors
        self._values = values

    def stage(self, stage: Stage) -> None:
        """Run one stage."""
        if any(name in self._tensors for name in targets_of(stage)):
            raise IrError(f"{', '.join(targets_of(stage))} is defined twice", where=str(stage))
        match stage:
            case Map():
                (value,) = self._values_of(stage, stage.loops, stage.value)
                self._define(stage.target, value, stage)
            case Concatenate():
                self._define(stage.target, self._concatenated(stage), stage)
            case Reduce():
                self._reduce(stage)
            case Scan():
                (value,) = self._values_of(stage, stage.loops, stage.value)
                self._define(stage.target, scan(stage.kind, value, stage.axis), stage)
            case Scatter():
                self._define(stage.target, self._scattered(stage), stage)
            case Template():
                self._template(stage)

    def output(self, output: GraphOutput) -> torch.Tensor:
        """A copy of a tensor in the strides of an output."""
        tensor = self._tensors[output.tensor]
        strides = [evaluate_size(stride, self._values) for stride in output.strides]
        if output.returned is not None:
            tensor = tensor.reshape([evaluate_size(size, self._values) for size in output.returned.sizes])
            strides = [evaluate_size(stride, self._values) for stride in output.returned.strides]
        result = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype)
        # Where a stride is 0 all values along the dimension share one place.
        shared = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
        result[shared].copy_(tensor[shared])
        return result

    def write(self, tensor: str, destination: str) -> None:
        """The values of a tensor, in row-major order, into an input."""
        target = self._tensors[destination]
        target.copy_(self._tensors[tensor].reshape(target.shape))

    def alias(self, output: AliasOutput, declared: dict[str, StridedInput]) -> torch.Tensor:
        """A view of an input."""
        tensor, strides = self._tensors[output.input], declared[output.input].strides
        for size, actual, stride in zip(tensor.shape, tensor.stride(), strides, strict=True):
            if size > 1 and tensor.numel() > 0 and actual != evaluate_size(stride, self._values):
                raise IrError(
                    f"{output.input} is viewed with strides {strides}, it has {tensor.stride()}", where=str(output)
                )
        return tensor.as_strided(
            [evaluate_size(size, self._values) for size in output.sizes],
            [evaluate_size(stride, self._values) for stride in output.strides],
            tensor.storage_offset() + evaluate_size(output.offset, self._values),
        )

    # -- inside ---------------------------------------------------------------------------------------------------

    def _points(self, stage: Stage, loops: Sequence[Loop]) -> _StagePoints:
        extents = [(loop.index, evaluate_size(loop.size, self._values)) for loop in loops]
        return _StagePoints(extents, self._values, self._tensors, stage)

    def _values_of(self, stage: Stage, loops: Sequence[Loop], *values: Expr) -> list[torch.Tensor]:
        points = self._points(stage, loops)
        return [points.whole(value) for value in points.evaluate(*values)]

    def _define(self, name: str, value: torch.Tensor, stage: Stage) -> None:
        kind = self._types[name]
        sizes = [evaluate_size(size, self._values) for size in kind.sizes]
        if list(value.shape) != sizes:
            raise IrError(f"{name} is declared as {kind} = {sizes}, computed as {list(value.shape)}", where=str(stage))
        self._tensors[name] = value.to(kind.dtype).contiguous()

    def _concatenated(self, stage: Concatenate) -> torch.Tensor:
        kind = self._types[stage.target]
        sizes = [evaluate_size(loop.size, self._values) for loop in stage.loops]
        result, filled = torch.empty(sizes, dtype=kind.dtype), 0
        for part in stage.parts:
            loops = list(stage.loops)
            loops[stage.axis] = Loop(loops[stage.axis].index, part.size)
            (value,) = self._values_of(stage, loops, part.value)
            start, size = evaluate_size(part.start, self._values), value.shape[stage.axis]
            if start != filled or start + size > sizes[stage.axis]:
                raise IrError(f"a part of {stage.target} starts at {start}, {filled} is filled", where=str(stage))
            result.narrow(stage.axis, start, size).copy_(value.to(kind.dtype))
            filled += size
        if filled != sizes[stage.axis]:
            raise IrError(f"the parts of {stage.target} fill {filled} of {sizes[stage.axis]}", where=str(stage))
        return result

    def _reduce(self, stage: Reduce) -> None:
        (value,) = self._values_of(stage, (*stage.loops, *stage.reduced), stage.value)
        kept = value.shape[: len(stage.loops)]
        folded = value.shape[len(stage.loops) :].numel()
        results = fold(stage.kind, value.reshape(*kept, folded))
        for name, result in zip(stage.targets, results, strict=True):
            if name is not None:
                self._define(name, result, stage)

    def _template(self, stage: Template) -> None:
        operands = [
            None if item is None else self._values_of(stage, item.loops, item.value)[0] for item in stage.operands
        ]
        values = evaluate_template(stage.name, operands, stage.options, stage.finish)
        for item, value in zip(stage.results, values, strict=True):
            if item.target is None:
                continue
            points = self._points(stage, item.loops)
            type_ = self._types[item.target]
            target = value.new_full([evaluate_size(size, self._values) for size in type_.sizes], math.nan)
            symbols = points.bound((), {})
            places = tuple(as_positions(evaluate_index(part, symbols)) for part in item.index)
            wrong, _ = find_outside(list(places), target.shape, None)
            if wrong:
                raise IrError(f"{item.target}{list(target.shape)} is written at {list(wrong)}", where=str(stage))
            sizes = [evaluate_size(loop.size, self._values) for loop in item.loops]
            target[places] = cropped(value, sizes)
            self._define(item.target, target, stage)

    def _scattered(self, stage: Scatter) -> torch.Tensor:
        (base,) = self._values_of(stage, stage.target_loops, stage.base)
        points = self._points(stage, stage.loops)
        mask = () if stage.mask is None else (stage.mask,)
        bound = tuple(value for _, value in stage.bindings)
        value, *rest = points.evaluate(stage.value, *mask, *bound)
        symbols = points.bound(stage.bindings, dict(zip(bound, rest[len(mask) :], strict=True)))
        positions = [as_positions(evaluate_index(index, symbols)) for index in stage.destination]
        wrong, _ = find_outside(positions, base.shape, rest[0] if mask else None)
        if wrong:
            raise IrError(f"{stage.target}{list(base.shape)} is written at {list(wrong)}", where=str(stage))
        flat = torch.zeros((), dtype=torch.int64)
        for position, size in zip(positions, base.shape, strict=True):
            flat = flat * size + position
        chosen = points.whole(rest[0]).reshape(-1) if mask else slice(None)
        destination, updates = points.whole(flat).reshape(-1)[chosen], points.whole(value).reshape(-1)[chosen]
        return _update(base.reshape(-1).clone(), destination, updates, stage).reshape(base.shape)


def _update(target: torch.Tensor, places: torch.Tensor, values: torch.Tensor, stage: Scatter) -> torch.Tensor:
    """Write values in order to places of a flat tensor."""
    match stage.mode:
        case "set":
            # The last writer of a place wins.
            last = torch.full(target.shape, -1, dtype=torch.int64)
            last.scatter_reduce_(0, places, torch.arange(places.numel()), "amax")
            written = last >= 0
            target[written] = values[last[written]]
            return target
        case "add":
            return target.index_add_(0, places, values)
        case "mul":
            return target.scatter_reduce_(0, places, values, "prod")
        case "max":
            return target.scatter_reduce_(0, places, values, "amax")
        case "min":
            return target.scatter_reduce_(0, places, values, "amin")
