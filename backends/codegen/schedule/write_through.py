"""Write through: a template writes its result where a copy in other dimensions would put it.

Place: end of ``simplify``.
Input, output: a ``StageGraph``. Example: where ``y[b, s, e] = o[b, e // 64, s, e % 64]`` is all that is read of
``o[b, h, s, d]``, the template writes ``y[b, s, 64*h + d]``, and nothing is copied.
Invariants: every element of the new target is written once, as before.
Non-goals: products, which must write row by row (``finished_products``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import sympy

from mixbackend.backends.codegen.ir.grammar import walk
from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo
from mixbackend.backends.codegen.ir.scalar import Load
from mixbackend.backends.codegen.ir.stages import (
    GraphOutput,
    Loop,
    Map,
    Result,
    Stage,
    StageGraph,
    Template,
    destinations,
)
from mixbackend.backends.codegen.ir.templates import is_packed_product


def write_through(graph: StageGraph) -> StageGraph:
    """Drop copies of what templates make where the template can write them."""
    results = {result.target: result for stage in graph.stages for result in _results(stage)}
    if not results:
        return graph
    reads = Counter(node.tensor for stage in graph.stages for node in walk(stage) if isinstance(node, Load))
    types = dict(graph.types)
    leaving = {item.tensor for item in graph.outputs if isinstance(item, GraphOutput)}
    moved: dict[str, Result] = {}
    dropped: set[str] = set()
    for stage in graph.stages:
        source = _copied(stage)
        result = None if source is None else results.get(source.tensor)
        if source is None or result is None or not isinstance(stage, Map) or stage.target in destinations(graph):
            continue
        is_alone = reads[source.tensor] == 1 and source.tensor not in leaving
        index = _index(stage, source, result) if is_alone else None
        if index is not None and types[stage.target].dtype == types[source.tensor].dtype:
            moved[source.tensor] = replace(result, target=stage.target, index=index)
            dropped.add(stage.target)
    stages = tuple(
        _written(stage, moved) for stage in graph.stages if not (isinstance(stage, Map) and stage.target in dropped)
    )
    kept = tuple((name, type_) for name, type_ in graph.types if name not in moved)
    return replace(graph, stages=stages, types=kept)


def _results(stage: Stage) -> tuple[Result, ...]:
    """Results that lie in the template's own dimensions, but for those of products."""
    results = stage.results if isinstance(stage, Template) and not is_packed_product(stage) else ()
    return tuple(item for item in results if item.index == tuple(loop.index for loop in item.loops))


def _copied(stage: Stage) -> Load | None:
    if not isinstance(stage, Map) or not isinstance(stage.value, Load):
        return None
    return None if stage.value.mask is not None or stage.value.bindings else stage.value


def _written(stage: Stage, moved: dict[str, Result]) -> Stage:
    if not isinstance(stage, Template):
        return stage
    return replace(stage, results=tuple(moved.get(item.target or "", item) for item in stage.results))


def _index(stage: Map, source: Load, result: Result) -> tuple[sympy.Expr, ...] | None:
    """Where the copy has each point of the template; ``None`` if it is not a mere change of dimensions."""
    place_of: dict[sympy.Expr, Loop] = {
        part: loop for part, loop in zip(source.index, result.loops, strict=True) if loop.size != 1
    }
    index: list[sympy.Expr] = []
    used: list[Loop] = []
    for loop in stage.loops:
        digits = [] if loop.size == 1 else _digits(loop, place_of)
        if digits is None:
            return None
        used += digits
        position = sympy.Integer(0)
        for digit in digits:
            position = position * digit.size + digit.index
        index.append(sympy.expand(position))
    is_whole = len(used) == len(set(used)) == len(place_of) == sum(loop.size != 1 for loop in result.loops)
    return tuple(index) if is_whole else None


def _digits(loop: Loop, place_of: dict[sympy.Expr, Loop]) -> list[Loop] | None:
    """The template's loops that a loop of the copy counts through together, outermost first."""
    same = place_of.get(loop.index)
    if same is not None:
        return [same] if same.size == loop.size else None
    for part, inner in place_of.items():
        if part.func is Modulo and part.args == (loop.index, inner.size):
            outer = place_of.get(FloorDiv(loop.index, inner.size))
            fits = outer is not None and sympy.expand(outer.size * inner.size - loop.size) == 0
            return [outer, inner] if outer is not None and fits else None
    return None
