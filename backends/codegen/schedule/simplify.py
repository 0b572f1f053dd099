"""Simplify: pointwise stages are computed where they are read, and what is not read is removed.

Place: first pass over stages; ``split`` and ``grouping`` follow.
Input, output: a ``StageGraph``. Invariants: outputs are the same tensors with the same values (up to rounding of 16-bit
intermediates, which stay in float32 when they are not stored).
Inlining is decided by cost: computing a value again where it is read against writing it to memory and reading it back.
What is read by several stages and expensive stays a stage; ``grouping`` puts it into the same kernel as its readers.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import replace

import sympy

from mixbackend.backends.codegen.ir.grammar import expressions_of, loops_of, rewrite, walk
from mixbackend.backends.codegen.ir.indices import index_symbol
from mixbackend.backends.codegen.ir.program import Refusal
from mixbackend.backends.codegen.ir.scalar import SCALAR_OPS, Apply, Expr, Load, are_checked_in, is_checked, is_element
from mixbackend.backends.codegen.ir.stages import (
    GraphOutput,
    Loop,
    Map,
    Operand,
    Reduce,
    Result,
    Scatter,
    Stage,
    StageGraph,
    Template,
    destinations,
    is_product,
    targets_of,
)
from mixbackend.backends.codegen.ir.templates import is_packed_product, is_place
from mixbackend.backends.codegen.schedule.checks import reads_all
from mixbackend.backends.codegen.schedule.finished_products import is_plain, places_of
from mixbackend.backends.codegen.schedule.fusion_cost import are_two_passes
from mixbackend.backends.codegen.schedule.hints import Hints, points
from mixbackend.backends.codegen.schedule.one_term import only_term, symbols_of
from mixbackend.backends.codegen.schedule.rewrite import inlined, loads_of, ranges_of, rename_tensors, renamed_bindings
from mixbackend.backends.codegen.schedule.write_through import write_through

CHEAP = 6.0
"""Cost (cycles per vector, see ``ScalarOp.cost``) up to which a value is computed again rather than stored."""

MAXIMUM_NODES = 160
"""Scalar nodes of one stage beyond which nothing more is inlined into it: registers and compile time are finite."""


def simplify(
    graph: StageGraph, hints: Hints, longest_column: int | None = None
) -> tuple[StageGraph, tuple[Refusal, ...]]:
    """Inline, rename and drop.

    Args:
        longest_column: points of a fold beyond which many blocks share it, so that nothing it read stays for others;
            ``None`` where one thread folds all.

    Returns:
        The smaller graph, and why tensors that could have been inlined were not.
    """
    graph = _drop_dead(_store_into_outputs(graph))
    inliner = _Inliner(graph, hints, longest_column)
    stages = tuple(inliner.rewrite(stage) for stage in graph.stages)
    return write_through(_drop_dead(replace(graph, stages=stages))), tuple(inliner.refusals)


def _store_into_outputs(graph: StageGraph) -> StageGraph:
    """Where an output is a plain copy of a stage's whole target, the stage writes the output itself."""
    makers = {name: stage for stage in graph.stages for name in targets_of(stage)}
    types = dict(graph.types)
    outputs = {output.tensor for output in graph.outputs if isinstance(output, GraphOutput)}
    # What is written into an input waits for all that reads it: it stays last.
    fresh = outputs - destinations(graph).keys()
    renamed: dict[str, str] = {}
    copies: set[str] = set()
    for stage in graph.stages:
        source = copied(stage) if targets_of(stage)[0] in fresh else None
        if source is None or source in renamed or source not in makers or source in outputs:
            continue
        if is_packed_product(makers[source]):
            # It writes row by row; ``finished_products`` sees whether the output lies so.
            continue
        target = targets_of(stage)[0]
        if types[source] == types[target]:
            renamed[source] = target
            copies.add(target)
    stages = tuple(
        rename_tensors(stage, renamed)
        for stage in graph.stages
        if not (isinstance(stage, Map) and stage.target in copies and copied(stage) in renamed)
    )
    kept = tuple((name, type_) for name, type_ in graph.types if name not in renamed)
    return replace(graph, stages=stages, types=kept)


def copied(stage: Stage) -> str | None:
    """The tensor that a stage copies as it is."""
    if not isinstance(stage, Map) or stage.apart or not isinstance(stage.value, Load):
        return None
    load = stage.value
    plain = load.mask is None and not load.bindings
    return load.tensor if plain and is_at(load, stage.loops) else None


def is_at(load: Load, loops: tuple[Loop, ...]) -> bool:
    """Whether a load without bindings reads the element at the point of loops over all dimensions."""
    return len(load.index) == len(loops) and all(
        index == loop.index or (loop.size == 1 and index == sympy.Integer(0))
        for index, loop in zip(load.index, loops, strict=True)
    )


def _drop_dead(graph: StageGraph) -> StageGraph:
    """Stages that no output needs are gone; unread results of reductions are ``None``."""
    needed = {output.tensor for output in graph.outputs if isinstance(output, GraphOutput)}
    kept: list[Stage] = []
    for stage in reversed(graph.stages):
        if needed.isdisjoint(targets_of(stage)):
            continue
        if isinstance(stage, Reduce):
            stage = replace(stage, targets=tuple(name if name in needed else None for name in stage.targets))
        if isinstance(stage, Template):
            stage = replace(stage, results=tuple(_if_needed(result, needed) for result in stage.results))
        kept.append(stage)
        needed.update(load.tensor for load in loads_of(stage))
    alive = {name for stage in kept for name in targets_of(stage)}
    made = {name for stage in graph.stages for name in targets_of(stage)}
    types = tuple((name, type_) for name, type_ in graph.types if name in alive or name not in made)
    return replace(graph, stages=tuple(reversed(kept)), types=types)


def _if_needed(result: Result, needed: set[str]) -> Result:
    return result if result.target in needed else replace(result, target=None)


class _Inliner:
    """Decides which maps are computed where they are read, and does it, stage by stage in order."""

    def __init__(self, graph: StageGraph, hints: Hints, longest_column: int | None) -> None:
        self._hints = hints
        self._longest_column = longest_column
        self._types = dict(graph.types)
        self._ranges = ranges_of(graph.stages)
        self._outputs = {output.tensor for output in graph.outputs if isinstance(output, GraphOutput)}
        self._readers = _readers(graph)
        self._products = {name for stage in graph.stages if is_product(stage) for name in targets_of(stage)}
        self._packed = {
            name: stage.results[0] for stage in graph.stages if is_packed_product(stage) for name in targets_of(stage)
        }
        self._maps: dict[str, Map] = {}
        self._chosen: dict[str, bool] = {}
        self._symbols = itertools.count()
        self.refusals: list[Refusal] = []

    def rewrite(self, stage: Stage) -> Stage:
        """The stage with chosen maps inlined; the result is remembered for the stages after it."""
        if isinstance(stage, Template):
            return replace(stage, operands=tuple(map(self._operand, stage.operands)))
        if is_product(stage):
            return self._product(stage)
        copies: dict[Load, Expr] = {}
        count = sum(1 for _ in walk(stage))

        def replaced(node: Expr) -> Expr:
            nonlocal count
            if not isinstance(node, Load) or node.tensor not in self._maps:
                return node
            if node not in copies:
                source = self._maps[node.tensor]
                size = sum(1 for _ in walk(source.value))
                if not self._wants(source, stage) or (count + size > MAXIMUM_NODES and size > 3):
                    return node
                copy = self._copy(source, node)
                if not are_checked_in(node.bindings, copy):
                    # A value that is the same everywhere does not look at the position; eager does.
                    return node
                count += size
                copies[node] = copy
            return copies[node]

        result = rewrite(stage, replaced)
        if isinstance(result, Reduce):
            result = only_term(result) or result
        if isinstance(result, Map) and not result.apart:
            self._maps[result.target] = result
        return result

    def _operand(self, operand: Operand | None) -> Operand | None:
        """What a template reads: views of another tensor are read there; what is computed is not inlined."""
        if operand is None:
            return None
        load = operand.value
        while load.tensor in self._maps:
            source = self._copy(self._maps[load.tensor], load)
            if not is_place(source, operand.loops):
                break
            assert isinstance(source, Load)
            if self._types[source.tensor].dtype != self._types[load.tensor].dtype:
                break
            load = source
        return replace(operand, value=load)

    def _product(self, stage: Reduce) -> Reduce:
        """A product of matrices reads views of other tensors there, too."""
        assert isinstance(stage.value, Apply)
        factors = tuple(self._element(item) for item in stage.value.arguments if isinstance(item, Load))
        return replace(stage, value=replace(stage.value, arguments=factors))

    def _element(self, load: Load) -> Load:
        """The element of another tensor that this one is a view of."""
        while load.tensor in self._maps:
            source = self._copy(self._maps[load.tensor], load)
            if not is_element(source) or self._types[source.tensor].dtype != self._types[load.tensor].dtype:
                break
            load = source
        return load

    def _copy(self, source: Map, load: Load) -> Expr:
        value = renamed_bindings(source.value, lambda: index_symbol(f"w{next(self._symbols)}"))
        return inlined(value, source.loops, load, self._ranges)

    def _wants(self, source: Map, reader: Stage) -> bool:
        """Whether a map is inlined into its readers; decided once per map, for all of them."""
        if source.target not in self._chosen:
            reason = self._objection(source)
            self._chosen[source.target] = reason is None
            if reason is not None:
                self.refusals.append(Refusal(source.target, targets_of(reader)[0], f"not inlined: {reason}"))
        return self._chosen[source.target]

    def _objection(self, source: Map) -> str | None:
        """Why a map should have memory of its own."""
        cost, loads = _cost(source)
        if cost == 0.0 and loads <= 1:
            return None
        if source.target in self._outputs:
            return "it is an output anyway"
        readers = self._readers[source.target]
        if is_checked(source.value) and not any(reads_all(reader, source) for reader, _ in readers):
            return "what is told of its inputs is told of all its points"
        if self._ends_product(source) and not all(isinstance(reader, Map) for reader, _ in readers):
            return "a product of matrices ends with it"
        goes_on = len(readers) == 1 and _goes_along(readers[0][0], source.target)
        if not goes_on and self._ends_packed_product(source):
            return "a product of matrices ends with it"
        made = max(points((loop.size for loop in source.loops), self._hints), 1)
        evaluations = sum(sites * self._evaluations(reader, source.target) for reader, sites in readers) / made
        if loads == 0 and cost <= CHEAP:
            return None
        if len(readers) == 1 and evaluations <= 1.5:
            return None
        big = self._big_loads(source, made)
        is_small = cost <= CHEAP and evaluations <= 2.0 * len(readers) and loads <= 4
        if is_small and (
            big <= 1
            or (big <= 2 and are_two_passes([reader for reader, _ in readers], self._longest_column, self._hints))
        ):
            return None
        if cost <= 1.0 and loads <= 1:
            return None
        return f"costs {cost:g} per vector, would be computed {evaluations:.3g} times by {len(readers)} readers"

    def _ends_product(self, source: Map) -> bool:
        return bool(self._products) and _reads(source.value, self._products)

    def _ends_packed_product(self, source: Map) -> bool:
        """Whether a map can be computed before a product that only it reads is stored (``finished_products``)."""
        loads = [node for node in walk(source.value) if isinstance(node, Load) and node.tensor in self._packed]
        return is_plain(source, self._types) and any(
            len(self._readers[load.tensor]) == 1 and places_of(self._packed[load.tensor], load, source) is not None
            for load in loads
        )

    def _evaluations(self, reader: Stage, name: str) -> int:
        """How often a reader reads a place of a tensor: what updates read is read once for each of them."""
        if not isinstance(reader, Scatter):
            return points((loop.size for loop in loops_of(reader)), self._hints)
        of_base = _reads(reader.base, {name})
        of_updates = any(_reads(item, {name}) for item in (reader.value, reader.mask) if item is not None)
        read = [reader.target_loops] * of_base + [reader.loops] * (of_updates or not of_base)
        return sum(points((loop.size for loop in loops), self._hints) for loops in read)

    def _big_loads(self, source: Map, made: int) -> int:
        """Accesses to tensors about as large as the map itself: the traffic that inlining repeats."""
        sizes = [
            points(self._types[node.tensor].sizes, self._hints) for node in walk(source.value) if isinstance(node, Load)
        ]
        return sum(1 for size in sizes if 2 * size >= made)


def _reads(value: Expr, names: Collection[str]) -> bool:
    """Whether a value reads one of these tensors."""
    return any(isinstance(node, Load) and node.tensor in names for node in walk(value))


def _goes_along(reader: Stage, name: str) -> bool:
    """Whether a stage is a map with the points of a tensor that it reads: what is inlined there stays at its place."""
    if not isinstance(reader, Map) or reader.apart:
        return False
    mine = {loop.index for loop in reader.loops if loop.size != 1}
    loads = [load for load in loads_of(reader) if load.tensor == name]
    return all(is_element(load) and mine == {part for part in load.index if part != 0} for load in loads)


def _readers(graph: StageGraph) -> dict[str, list[tuple[Stage, int]]]:
    """For each tensor, the stages that read it, with the number of different places they read it at."""
    readers: dict[str, list[tuple[Stage, int]]] = defaultdict(list)
    for stage in graph.stages:
        for name, sites in Counter(load.tensor for load in loads_of(stage)).items():
            readers[name].append((stage, sites))
    return readers


def _cost(source: Map) -> tuple[float, int]:
    """Cycles per vector of the scalar operators, and the number of accesses.

    What is the same at all points is computed once, wherever it is read.
    """
    indices = {loop.index for loop in source.loops}
    varying: set[Expr] = set()
    cost, loads = 0.0, 0
    for node in walk(source.value):
        if indices & symbols_of(node) or any(part in varying for part in expressions_of(node)):
            varying.add(node)
        if isinstance(node, Apply) and node in varying:
            cost += SCALAR_OPS[node.op].cost
        loads += isinstance(node, Load)
    return cost, loads


__all__ = ["CHEAP", "MAXIMUM_NODES", "copied", "simplify"]
