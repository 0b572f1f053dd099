"""Single rows: products of a vector and a matrix are ordinary sums, for targets that work on blocks of points.

Place: the first pass of ``schedule`` for such targets. Input, output: a ``StageGraph``.
Hardware multiplies tiles of matrices. A tile of which one row is a result computes and loads as much as a full one, and
the sum of a row waits for memory alone: as a fold it shares its kernel with other folds over the same vector (the two
halves of a gated layer), with what follows it, and with a conversion of what it reads.
Invariants: the same values; sizes that are not known stay products of matrices.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from mixbackend.backends.codegen.ir.scalar import Apply, Load
from mixbackend.backends.codegen.ir.stages import Reduce, Stage, StageGraph, is_product


def sum_single_rows(graph: StageGraph) -> StageGraph:
    """The graph with products of one row, or of one column, as sums."""
    stages = tuple(replace(stage, kind="sum") if _is_single(stage) else stage for stage in graph.stages)
    return replace(graph, stages=stages)


def _is_single(stage: Stage) -> TypeGuard[Reduce]:
    """Whether a stage is a product of which a factor has, in each batch, one row or column."""
    if not is_product(stage) or not isinstance(stage.value, Apply):
        return False
    left, right = (
        {symbol for part in factor.index for symbol in part.free_symbols}
        for factor in stage.value.arguments
        if isinstance(factor, Load)
    )
    loops = {loop.index for loop in stage.loops if loop.size != 1}
    return not loops & (left - right) or not loops & (right - left)
