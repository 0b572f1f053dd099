"""Layouts: in which order the dimensions of each tensor lie in memory.

Place: after ``split_loops``, before ``grouping``.
Input: a ``StageGraph``. Output: the layout of every tensor. Inputs and outputs have theirs already; a tensor in between
follows what it is computed from, or, where that says nothing, what is computed from it: a chain over channels-last
tensors stays channels-last. Packed products write row by row, and read so what is made for them alone; what is computed
from them follows them. Tensors in between are dense.
Non-goals: padding, and layouts that help a library kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import sympy

from mixbackend.backends.codegen.ir.stages import (
    Map,
    Stage,
    StageGraph,
    Template,
    given_strides,
    target_loops_of,
    targets_of,
)
from mixbackend.backends.codegen.ir.templates import is_packed_product
from mixbackend.backends.codegen.schedule.group import Layout
from mixbackend.backends.codegen.schedule.hints import Hints, estimate, points
from mixbackend.backends.codegen.schedule.rewrite import loads_of

Strides = tuple[sympy.Expr, ...]


def choose_layouts(graph: StageGraph, hints: Hints | None = None) -> dict[str, Layout]:
    """Layouts of all tensors of a graph, by name.

    Args:
        hints: likely values of symbolic sizes.
    """
    return _Chooser(graph, hints or {}).run()


def dense_strides(sizes: Sequence[sympy.Expr], order: Sequence[int]) -> Strides:
    """Strides without gaps; ``order`` lists dimensions, outermost first."""
    strides: list[sympy.Expr] = [sympy.Integer(0)] * len(sizes)
    step = sympy.Integer(1)
    for dimension in reversed(order):
        strides[dimension] = step
        step = sympy.expand(step * sizes[dimension])
    return tuple(strides)


class _Chooser:
    def __init__(self, graph: StageGraph, hints: Hints) -> None:
        self._graph = graph
        self._hints = hints
        self._types = dict(graph.types)
        self._strides: dict[str, Strides] = given_strides(graph)
        self._products = {name for stage in graph.stages if is_packed_product(stage) for name in targets_of(stage)}
        self._readers: dict[str, list[Stage]] = {}
        for stage in graph.stages:
            for load in loads_of(stage):
                self._readers.setdefault(load.tensor, []).append(stage)

    def run(self) -> dict[str, Layout]:
        undecided = []
        for stage in self._graph.stages:
            for name in targets_of(stage):
                if name in self._strides:
                    continue
                made_by_rows = is_packed_product(stage)
                order = (None if made_by_rows else self._order_for_products(name)) or self._order_of_sources(stage)
                if order is None:
                    undecided.append(name)
                    continue
                self._strides[name] = dense_strides(self._types[name].sizes, order)
        for name in reversed(undecided):
            sizes = self._types[name].sizes
            self._strides[name] = dense_strides(sizes, self._order_of_readers(name) or range(len(sizes)))
        return {name: Layout(type_, self._strides[name]) for name, type_ in self._graph.types}

    def _order_of_sources(self, stage: Stage) -> list[int] | None:
        """Order of the dimensions of a stage's target as what it reads has them."""
        if isinstance(stage, Map) and stage.apart:
            return list(range(len(stage.loops)))
        if isinstance(stage, Template):
            return _order_of_product(stage) if is_packed_product(stage) else None
        loops = target_loops_of(stage)
        dimension = {loop.index: place for place, loop in enumerate(loops) if loop.size != 1}
        seen = []
        for load in loads_of(stage):
            if load.tensor in self._strides:
                pairs = zip(load.index, self._strides[load.tensor], strict=True)
                strides = {dimension[index]: stride for index, stride in pairs if index in dimension}
                seen.append((strides, load.tensor))
        return self._order(seen, len(loops))

    def _order_for_products(self, name: str) -> list[int] | None:
        """Order of a tensor that a product sums over one dimension of, and that is made for that."""
        for stage in self._readers.get(name, ()):
            left = stage.operands[0] if is_packed_product(stage) else None
            if left is None or left.value.tensor != name:
                continue
            term = left.loops[-1].index
            summed = [place for place, part in enumerate(left.value.index) if term in part.free_symbols]
            if summed:
                return [*(place for place in range(len(left.value.index)) if place not in summed), *summed]
        return None

    def _order_of_readers(self, name: str) -> list[int] | None:
        """Order of the dimensions of a tensor as the targets computed from it have them."""
        seen = []
        for stage in self._readers.get(name, ()):
            if isinstance(stage, Template):
                continue
            target = targets_of(stage)[0]
            if target not in self._strides:
                continue
            loops = target_loops_of(stage)
            stride_of = dict(zip((loop.index for loop in loops), self._strides[target], strict=True))
            for load in loads_of(stage):
                if load.tensor == name:
                    found = {place: stride_of[index] for place, index in enumerate(load.index) if index in stride_of}
                    seen.append((found, target))
        return self._order(seen, len(self._types[name].sizes))

    def _order(self, seen: Iterable[tuple[Mapping[int, sympy.Expr], str]], rank: int) -> list[int] | None:
        """Follow the access that says most: of the most dimensions, of a product, of the largest tensor, the first."""
        best: tuple[int, bool, int] = (1, False, 0)
        chosen: dict[int, int] | None = None
        for strides, tensor in seen:
            known = {place: estimate(stride, self._hints) for place, stride in strides.items()}
            known = {place: stride for place, stride in known.items() if stride > 0}
            weight = (len(known), tensor in self._products, points(self._types[tensor].sizes, self._hints))
            if len(known) > 1 and weight > best:
                best, chosen = weight, known
        if chosen is None:
            return None
        # Dimensions that the access does not have keep their places between the others.
        ranked = iter(sorted(chosen, key=lambda place: (-chosen[place], place)))
        return [next(ranked) if place in chosen else place for place in range(rank)]


def _order_of_product(stage: Template) -> list[int]:
    """Dimensions of what a product makes in the order of its loops, columns innermost."""
    (result,) = stage.results
    place_of = {loop.index: place for place, loop in enumerate(result.loops)}
    first = [
        min((place_of[symbol] for symbol in part.free_symbols & place_of.keys()), default=0) for part in result.index
    ]
    return sorted(range(len(first)), key=lambda place: first[place])


__all__ = ["choose_layouts", "dense_strides"]
