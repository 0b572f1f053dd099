"""Reindexing: the loops of a stage replaced by expressions over other loops.

Place: used by ``split_loops`` and ``grouping``.
Invariants: values stay; parts that do not change are the same objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import sympy

from mixbackend.backends.codegen.ir.indices import Ranges, substitute
from mixbackend.backends.codegen.ir.scalar import Expr, IndexValue, Load
from mixbackend.backends.codegen.ir.stages import Loop, Reduce, Scatter, Stage, Template
from mixbackend.backends.codegen.schedule.rewrite import map_stage, rewrite

Index = tuple[sympy.Expr, ...]
Values = Mapping[sympy.Symbol, sympy.Expr]


def reindexed(
    stage: Stage, values: Values, ranges: Ranges, place: Callable[[str, Index], Index] = lambda _, index: index
) -> Stage:
    """Replace loop indices in every expression of a stage; its loops stay as they are.

    Args:
        values: what each index becomes.
        ranges: of the indices in the result.
        place: index of an element of a tensor, from its new index in the tensor's old dimensions.
    """

    def moved(node: Expr) -> Expr:
        if isinstance(node, IndexValue):
            return replace(node, expression=substitute(node.expression, values, ranges))
        if isinstance(node, Load):
            index = place(node.tensor, tuple(substitute(part, values, ranges) for part in node.index))
            return node if index == node.index else replace(node, index=index)
        return node

    stage = map_stage(stage, lambda value: rewrite(value, moved))
    if isinstance(stage, Scatter):
        destination = tuple(substitute(part, values, ranges) for part in stage.destination)
        return replace(stage, destination=destination)
    return stage


def renamed(stage: Stage, names: Mapping[sympy.Symbol, sympy.Symbol]) -> Stage:
    """Rename loop indices: in loops and in expressions."""
    if all(old == new for old, new in names.items()):
        return stage
    return with_loops(
        reindexed(stage, names, {}),
        lambda loops: tuple(Loop(names.get(loop.index, loop.index), loop.size) for loop in loops),
    )


def with_loops(stage: Stage, change: Callable[[tuple[Loop, ...]], tuple[Loop, ...]]) -> Stage:
    """The stage with each of its lists of loops changed; expressions stay."""
    if isinstance(stage, Reduce):
        return replace(stage, loops=change(stage.loops), reduced=change(stage.reduced))
    if isinstance(stage, Scatter):
        return replace(stage, loops=change(stage.loops), target_loops=change(stage.target_loops))
    if isinstance(stage, Template):
        operands = tuple(item and replace(item, loops=change(item.loops)) for item in stage.operands)
        results = tuple(replace(item, loops=change(item.loops)) for item in stage.results)
        return replace(stage, operands=operands, results=results)
    return replace(stage, loops=change(stage.loops))
