"""Split loops: reshapes become loops of their own, so that indices need no division and stages can share loops.

Place: after ``simplify``, before ``grouping``.
Input, output: a ``StageGraph``. Example: a mean over the last dimension of [64, 32, 128], read by a stage over
[2048, 128] at ``mean[FloorDiv(i, 32), Modulo(i, 32)]``: the loop ``i`` becomes two, of 64 and 32 values, the stage's
target becomes [64, 32, 128] and the read ``mean[i0, i1]``.
Invariants: outputs are the same; where an output's tensor has more dimensions than before, ``GraphOutput.returned`` has
the old ones. Which loops are split, and why, is in ``split_points``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy

from mixbackend.backends.codegen.ir.grammar import (
    index_expressions_of,
    loops_of,
    map_loops,
    rewrite,
    walk,
)
from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo, unflatten
from mixbackend.backends.codegen.ir.scalar import Expr, Load
from mixbackend.backends.codegen.ir.stages import (
    AliasOutput,
    Concatenate,
    GraphOutput,
    Loop,
    Returned,
    Scan,
    Scatter,
    Stage,
    StageGraph,
    Template,
    TensorType,
    target_loops_of,
    targets_of,
)
from mixbackend.backends.codegen.schedule.rewrite import loads_of, ranges_of, with_indices
from mixbackend.backends.codegen.schedule.split_points import (
    Points,
    digit_symbols,
    digits,
    recomposed,
    split_points,
)


def split_loops(graph: StageGraph) -> StageGraph:
    """Split every loop with an index that is divided somewhere, or with a dimension that is read in pieces."""
    whole: frozenset[sympy.Symbol] = frozenset()
    points = split_points(graph)
    while points:
        split = _Splitter(graph, points).run()
        if divisions(split) <= divisions(graph):
            return split
        # Reads in pieces that do not nest can ask for more divisions than they spare: what they read stays whole.
        harmful = whole | (_harmful(graph, split) & points.keys())
        if harmful == whole:
            return graph
        whole = harmful
        points = split_points(graph, whole)
    return graph


def _harmful(graph: StageGraph, split: StageGraph) -> frozenset[sympy.Symbol]:
    """Loops of stages that have more divisions than before, and those that make what these read."""
    stages = zip(graph.stages, split.stages, strict=True)
    harmed = [before for before, after in stages if _divisions_of(after) > _divisions_of(before)]
    read = {load.tensor for stage in harmed for load in loads_of(stage)}
    makers = [stage for stage in graph.stages if not read.isdisjoint(targets_of(stage))]
    return frozenset(loop.index for stage in (*harmed, *makers) for loop in loops_of(stage))


def divisions(graph: StageGraph) -> int:
    """Indices with a division, over all stages but templates, where they are no part of a loop."""
    return sum(map(_divisions_of, graph.stages))


def _divisions_of(stage: Stage) -> int:
    if isinstance(stage, Template):
        return 0
    indices = (part for node in walk(stage) for part in index_expressions_of(node))
    return sum(part.has(FloorDiv, Modulo) for part in indices)


class _Splitter:
    def __init__(self, graph: StageGraph, points: Mapping[sympy.Symbol, Points]) -> None:
        self._graph = graph
        self._types = dict(graph.types)
        self._points = points
        self._ranges = ranges_of(graph.stages)
        self._values: dict[sympy.Symbol, sympy.Expr] = {}
        for symbol, chosen in points.items():
            new = digit_symbols(symbol, chosen)
            self._values[symbol] = recomposed(symbol, chosen, new)
            self._ranges.update(zip(new, digits(self._ranges[symbol], chosen), strict=True))
        self._dimensions = self._split_dimensions()

    def run(self) -> StageGraph:
        stages = tuple(map(self._stage, self._graph.stages))
        types = tuple((name, self._type(name, type_)) for name, type_ in self._graph.types)
        outputs = tuple(map(self._output, self._graph.outputs))
        return replace(self._graph, stages=stages, types=types, outputs=outputs)

    def _split_dimensions(self) -> dict[str, tuple[Points, ...]]:
        """Split points of every dimension of every target that has some."""
        found: dict[str, tuple[Points, ...]] = {}
        for stage in self._graph.stages:
            if isinstance(stage, Template):
                continue
            points = tuple(self._points.get(loop.index, ()) for loop in target_loops_of(stage))
            if any(points):
                found.update((name, points) for name in targets_of(stage))
        return found

    def _stage(self, stage: Stage) -> Stage:
        used = {loop.index: self._values[loop.index] for loop in loops_of(stage) if loop.index in self._values}
        result = rewrite(with_indices(stage, used, self._ranges), self._placed)
        if isinstance(result, Scatter):
            result = replace(result, destination=self._place(result.target, result.destination))
        if isinstance(result, (Scan, Concatenate)):
            before = self._loops(result.loops[: result.axis])
            result = replace(result, axis=len(before))
        return map_loops(result, self._loops)

    def _loops(self, loops: tuple[Loop, ...]) -> tuple[Loop, ...]:
        made: list[Loop] = []
        for loop in loops:
            chosen = self._points.get(loop.index)
            if chosen is None:
                made.append(loop)
                continue
            made.extend(map(Loop, digit_symbols(loop.index, chosen), digits(loop.size, chosen)))
        return tuple(made)

    def _placed(self, node: Expr) -> Expr:
        return replace(node, index=self._place(node.tensor, node.index)) if isinstance(node, Load) else node

    def _place(self, tensor: str, index: tuple[sympy.Expr, ...]) -> tuple[sympy.Expr, ...]:
        """The index of an element after the tensor's dimensions were split."""
        if tensor not in self._dimensions:
            return index
        sizes = self._types[tensor].sizes
        parts: list[sympy.Expr] = []
        for item, size, chosen in zip(index, sizes, self._dimensions[tensor], strict=True):
            parts.extend(unflatten(item, digits(size, chosen), self._ranges))
        return tuple(parts)

    def _type(self, name: str, type_: TensorType) -> TensorType:
        if name not in self._dimensions:
            return type_
        pairs = zip(type_.sizes, self._dimensions[name], strict=True)
        return replace(type_, sizes=tuple(part for size, chosen in pairs for part in digits(size, chosen)))

    def _output(self, output: GraphOutput | AliasOutput) -> GraphOutput | AliasOutput:
        if isinstance(output, AliasOutput) or output.tensor not in self._dimensions:
            return output
        sizes = self._types[output.tensor].sizes
        strides: list[sympy.Expr] = []
        for stride, chosen in zip(output.strides, self._dimensions[output.tensor], strict=True):
            strides.extend(sympy.expand(stride * point) for point in (*reversed(chosen), sympy.Integer(1)))
        returned = output.returned or Returned(sizes, output.strides)
        return replace(output, strides=tuple(strides), returned=returned)
