"""Joined: a concatenation becomes one map that chooses, point by point, the part that it is in.

Place: first pass over stages for targets that work on blocks (``targets.target.Blocks``): threads of a block take all
branches, and a load that is masked off costs nothing, so that a concatenation fuses like any other map.
Before and after::

    y = [a, b] along i       ->      y[i] = a[i] if i < n else b[i - n]        (each read only where it is meant)

Invariants: same values. Concatenations of many or large parts stay as they are, one piece of code for each part.
"""

from __future__ import annotations

from dataclasses import replace

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import rewrite, walk
from mixbackend.backends.codegen.ir.indices import Ranges, substitute
from mixbackend.backends.codegen.ir.scalar import Expr, IndexValue, Load, apply
from mixbackend.backends.codegen.ir.stages import Concatenate, Loop, Map, Part, Stage, StageGraph
from mixbackend.backends.codegen.schedule.rewrite import ranges_of

MOST_PARTS = 8
MOST_NODES = 64
"""Of all parts together: registers are finite."""


def join_concatenations(graph: StageGraph) -> StageGraph:
    """Make maps of the concatenations that are small enough."""
    ranges = ranges_of(graph.stages)
    return replace(graph, stages=tuple(_joined(stage, ranges) for stage in graph.stages))


def _joined(stage: Stage, ranges: Ranges) -> Stage:
    if not isinstance(stage, Concatenate) or not 0 < len(stage.parts) <= MOST_PARTS:
        return stage
    if sum(1 for part in stage.parts for _ in walk(part.value)) > MOST_NODES:
        return stage
    axis = stage.loops[stage.axis]
    place = IndexValue(torch.int64, axis.index)
    *others, last = stage.parts
    value = _where_it_is(last, axis, ranges, first=not others, last=True)
    for number, part in reversed(list(enumerate(others))):
        inside = place < IndexValue(torch.int64, sympy.expand(part.start + part.size))
        mine = _where_it_is(part, axis, ranges, first=number == 0, last=False)
        value = apply("where", inside, mine, value, dtype=value.dtype)
    return Map(stage.target, stage.loops, value, stage.origins)


def _where_it_is(part: Part, axis: Loop, ranges: Ranges, first: bool, last: bool) -> Expr:
    """The value of a part over the whole axis; what it loads is masked off outside."""
    place = IndexValue(torch.int64, axis.index)
    after = place >= IndexValue(torch.int64, part.start)
    before = place < IndexValue(torch.int64, sympy.expand(part.start + part.size))
    mask = None if first and last else before if first else after if last else after & before
    moved = {axis.index: axis.index - part.start}

    def node(item: Expr) -> Expr:
        if isinstance(item, IndexValue):
            return replace(item, expression=substitute(item.expression, moved, ranges))
        if not isinstance(item, Load):
            return item
        index = tuple(substitute(expression, moved, ranges) for expression in item.index)
        both = item.mask if mask is None else mask if item.mask is None else mask & item.mask
        return replace(item, index=index, mask=both)

    return rewrite(part.value, node)
