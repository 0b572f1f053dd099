"""Rewriting of scalar expressions: loads found and replaced, indices substituted.

Place: used by the passes over stages.
Invariants: equal parts are rewritten once and stay shared; a bound symbol keeps one meaning within an expression.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import T, loops_of, map_loops, reindex, rewrite, walk
from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo, Ranges, substitute
from mixbackend.backends.codegen.ir.scalar import Apply, Bindings, Constant, Expr, IndexValue, Load, apply, cast, needed
from mixbackend.backends.codegen.ir.stages import Loop, Reduce, Stage, Template


def with_indices(whole: T, indices: Mapping[sympy.Symbol, sympy.Expr], ranges: Ranges) -> T:
    """A node with loop indices replaced in its index expressions and those of its values; its loops stay.

    Args:
        ranges: of the indices that come in.
    """
    return reindex(whole, lambda expression: substitute(expression, indices, ranges))


def renamed(whole: T, names: Mapping[sympy.Symbol, sympy.Symbol]) -> T:
    """A stage or a nest with loop indices renamed: in loops and in expressions."""
    if all(old == new for old, new in names.items()):
        return whole
    return map_loops(
        with_indices(whole, names, {}),
        lambda loops: tuple(replace(loop, index=names.get(loop.index, loop.index)) for loop in loops),
    )


def rename_targets(stage: Stage, names: Mapping[str, str]) -> Stage:
    """The stage with those of its targets renamed that have a new name."""
    if isinstance(stage, Reduce):
        return replace(stage, targets=tuple(name and names.get(name, name) for name in stage.targets))
    if isinstance(stage, Template):
        results = tuple(
            replace(item, target=item.target and names.get(item.target, item.target)) for item in stage.results
        )
        return replace(stage, results=results)
    return replace(stage, target=names.get(stage.target, stage.target))


def rename_tensors(stage: Stage, names: Mapping[str, str]) -> Stage:
    """The stage with those of its targets, and of the tensors that it reads, renamed that have a new name."""

    def once(node: Expr) -> Expr:
        return replace(node, tensor=names[node.tensor]) if isinstance(node, Load) and node.tensor in names else node

    stage = rename_targets(stage, names)
    if not any(load.tensor in names for load in loads_of(stage)):
        return stage
    return rewrite(stage, once)


@functools.lru_cache(maxsize=4096)
def loads_of(stage: Stage) -> tuple[Load, ...]:
    """Every distinct access of a stage, in a fixed order. Kept while a graph is scheduled: each pass asks again."""
    return tuple(node for node in walk(stage) if isinstance(node, Load))


def readers_of(stages: Iterable[Stage]) -> Counter[str]:
    """How many stages read each tensor."""
    return Counter(name for stage in stages for name in {load.tensor for load in loads_of(stage)})


def ranges_of(stages: tuple[Stage, ...]) -> dict[sympy.Symbol, sympy.Expr]:
    """Sizes of all loop indices."""
    return {loop.index: loop.size for stage in stages for loop in loops_of(stage)}


def renamed_bindings(expression: Expr, fresh: Callable[[], sympy.Symbol]) -> Expr:
    """The expression with bound symbols of its own: for a second copy beside another."""

    def once(node: Expr) -> Expr:
        if not isinstance(node, Load) or not node.bindings:
            return node
        new = {symbol: fresh() for symbol, _ in node.bindings}
        index = tuple(part.xreplace(new) for part in node.index)
        return replace(node, index=index, bindings=tuple((new[symbol], value) for symbol, value in node.bindings))

    return rewrite(expression, once)


def inlined(value: Expr, loops: tuple[Loop, ...], load: Load, ranges: Ranges) -> Expr:
    """What ``load`` reads, computed on the spot: the value of a ``Map`` at the load's index and under its mask.

    Args:
        value: of the map, over ``loops``.
        load: an access to the map's target.
        ranges: sizes of all indices.
    """
    index = {loop.index: position for loop, position in zip(loops, load.index, strict=True)}

    def at_load(node: Expr) -> Expr:
        if isinstance(node, IndexValue):
            return _index_value(substitute(node.expression, index, ranges), node.dtype, load.bindings)
        if isinstance(node, Apply) and node.op == "corrected" and load.mask is not None:
            # What is not read is not computed, and nothing of it is told.
            value, given = node.arguments
            return replace(node, arguments=(value, apply("where", load.mask, given, value)))
        if not isinstance(node, Load):
            return node
        moved = tuple(substitute(part, index, ranges) for part in node.index)
        bindings = (*node.bindings, *needed(load.bindings, moved))
        return replace(node, index=moved, bindings=bindings, mask=_both(load.mask, node.mask))

    computed = rewrite(value, at_load)
    if load.mask is None:
        return computed
    return apply("where", load.mask, computed, Constant(computed.dtype, load.other), dtype=computed.dtype)


def _both(first: Expr | None, second: Expr | None) -> Expr | None:
    if first is None or second is None or first == second:
        return first if second is None else second
    return first & second


def _index_value(expression: sympy.Expr, dtype: torch.dtype, bindings: Bindings) -> Expr:
    """The value of an index; where run-time integers take part, by arithmetic on their values."""
    bound = {symbol: value for symbol, value in bindings if symbol in expression.free_symbols}
    if not bound:
        return IndexValue(dtype, expression)
    value = _arithmetic(expression, bound)
    return cast(value, dtype)


_INTEGER_OPS = {FloorDiv: "floor_div", Modulo: "remainder", sympy.Add: "add", sympy.Mul: "mul"}
_INTEGER_OPS.update({sympy.Min: "minimum", sympy.Max: "maximum"})


def _arithmetic(expression: sympy.Expr, bound: Mapping[sympy.Symbol, Expr]) -> Expr:
    if not expression.free_symbols & bound.keys():
        return IndexValue(torch.int64, expression)
    if expression.is_Symbol:
        return cast(bound[expression], torch.int64)
    parts = [_arithmetic(part, bound) for part in expression.args]
    result = parts[0]
    for part in parts[1:]:
        result = apply(_INTEGER_OPS[expression.func], result, part)
    return result
