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

from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo, Ranges, substitute
from mixbackend.backends.codegen.ir.scalar import (
    Apply,
    Bindings,
    Constant,
    Expr,
    IndexValue,
    Load,
    Read,
    apply,
    needed,
    walk,
)
from mixbackend.backends.codegen.ir.stages import (
    Concatenate,
    Loop,
    Operand,
    Part,
    Reduce,
    Scatter,
    Stage,
    Template,
    expressions_of,
)

NodeRewrite = Callable[[Expr], Expr]


def rewrite(root: Expr, function: NodeRewrite) -> Expr:
    """Rebuild an expression from its parts upwards; ``function`` sees each node with its parts already rewritten."""
    done: dict[Expr, Expr] = {}
    for node in walk(root):
        done[node] = function(_with_parts(node, done))
    return done[root]


def with_indices(value: Expr, indices: Mapping[sympy.Symbol, sympy.Expr], ranges: Ranges) -> Expr:
    """The value with loop indices replaced; ranges are of the symbols that come in."""

    def moved(node: Expr) -> Expr:
        if isinstance(node, IndexValue):
            return replace(node, expression=substitute(node.expression, indices, ranges))
        if isinstance(node, Load):
            return replace(node, index=tuple(substitute(part, indices, ranges) for part in node.index))
        return node

    return rewrite(value, moved)


def _with_parts(node: Expr, done: Mapping[Expr, Expr]) -> Expr:
    if isinstance(node, Apply):
        parts = tuple(done[part] for part in node.arguments)
        return node if parts == node.arguments else replace(node, arguments=parts)
    if isinstance(node, (Load, Read)) and (node.bindings or node.mask is not None):
        bindings = tuple((symbol, done[value]) for symbol, value in node.bindings)
        mask = None if node.mask is None else done[node.mask]
        return replace(node, bindings=bindings, mask=mask)
    return node


def map_stage(stage: Stage, function: Callable[[Expr], Expr]) -> Stage:
    """The stage with every expression replaced."""
    if isinstance(stage, Concatenate):
        parts = tuple(Part(part.size, part.start, function(part.value)) for part in stage.parts)
        return replace(stage, parts=parts)
    if isinstance(stage, Scatter):
        return replace(
            stage,
            base=function(stage.base),
            value=function(stage.value),
            mask=None if stage.mask is None else function(stage.mask),
            bindings=tuple((symbol, function(value)) for symbol, value in stage.bindings),
        )
    if isinstance(stage, Template):
        return replace(stage, operands=tuple(map_operand(item, function) for item in stage.operands))
    return replace(stage, value=function(stage.value))


def map_operand(operand: Operand | None, function: Callable[[Expr], Expr]) -> Operand | None:
    """An operand with its value replaced by another place in memory."""
    if operand is None:
        return None
    value = function(operand.value)
    assert isinstance(value, Load), f"an operand became {value}"
    return replace(operand, value=value)


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
    return map_stage(stage, lambda value: rewrite(value, once))


@functools.lru_cache(maxsize=4096)
def loads_of(stage: Stage) -> tuple[Load, ...]:
    """Every distinct access of a stage, in a fixed order. Kept while a graph is scheduled: each pass asks again."""
    return tuple(node for node in walk(*expressions_of(stage)) if isinstance(node, Load))


def readers_of(stages: Iterable[Stage]) -> Counter[str]:
    """How many stages read each tensor."""
    return Counter(name for stage in stages for name in {load.tensor for load in loads_of(stage)})


def loops_of(stage: Stage) -> tuple[Loop, ...]:
    """Every loop of a stage: kept, reduced, and those of a scatter's target."""
    if isinstance(stage, Reduce):
        return (*stage.loops, *stage.reduced)
    if isinstance(stage, Scatter):
        return (*stage.target_loops, *stage.loops)
    if isinstance(stage, Template):
        return tuple(loop for item in (*stage.operands, *stage.results) if item is not None for loop in item.loops)
    return stage.loops


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
    return apply("and", first, second)


def _index_value(expression: sympy.Expr, dtype: torch.dtype, bindings: Bindings) -> Expr:
    """The value of an index; where run-time integers take part, by arithmetic on their values."""
    bound = {symbol: value for symbol, value in bindings if symbol in expression.free_symbols}
    if not bound:
        return IndexValue(dtype, expression)
    value = _arithmetic(expression, bound)
    return value if dtype == value.dtype else apply("to_dtype", value, dtype=dtype)


_INTEGER_OPS = {FloorDiv: "floor_div", Modulo: "remainder", sympy.Add: "add", sympy.Mul: "mul"}
_INTEGER_OPS.update({sympy.Min: "minimum", sympy.Max: "maximum"})


def _arithmetic(expression: sympy.Expr, bound: Mapping[sympy.Symbol, Expr]) -> Expr:
    if not expression.free_symbols & bound.keys():
        return IndexValue(torch.int64, expression)
    if expression.is_Symbol:
        value = bound[expression]
        return value if value.dtype == torch.int64 else apply("to_dtype", value, dtype=torch.int64)
    parts = [_arithmetic(part, bound) for part in expression.args]
    result = parts[0]
    for part in parts[1:]:
        result = apply(_INTEGER_OPS[expression.func], result, part)
    return result
