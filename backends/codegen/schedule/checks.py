"""Checks: what is told of inputs that are out of range, and when.

Place: in ``schedule``: ``without_checks`` first, for targets that cannot tell; ``checked_first`` in ``write_inputs``.
Input, output: a ``StageGraph``. A program tells at the end of a call that a value was ``corrected``, which costs a
comparison beside the value. What is written into an input by then stays written, so that eager could not be asked any
more. So, where a graph writes into inputs, all its checks become stages of their own, which fold them over the values
that are checked (positions, labels, divisors) and nothing else::

    x.new[p[i], j] = ...      ->      checked = sum over i of corrected(inside(p[i]), p[i]); x.new[p[i], j] = ...

Kernels that write into inputs come after all of them (``write_inputs.readers_before_writers``), and are not started if
one has told something.
Invariants: every check is made at each point at which it was made; values are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import sympy

from mixbackend.backends.codegen.ir.grammar import expressions_of, loops_of, rewrite, walk
from mixbackend.backends.codegen.ir.indices import index_symbol
from mixbackend.backends.codegen.ir.scalar import Apply, Expr, Load, is_checked, needed
from mixbackend.backends.codegen.ir.stages import (
    Concatenate,
    Loop,
    Map,
    Reduce,
    Scatter,
    Stage,
    StageGraph,
    Template,
    TensorType,
    targets_of,
)
from mixbackend.backends.codegen.schedule.one_term import symbols_of
from mixbackend.backends.codegen.schedule.rewrite import renamed


def tells(stage: Stage) -> bool:
    """Whether a stage may tell that something is out of range."""
    return not isinstance(stage, Template) and is_checked(stage)


def without_checks(graph: StageGraph) -> StageGraph:
    """The graph that tells nothing: what is out of range is corrected silently."""
    return replace(graph, stages=tuple(map(unchecked, graph.stages)))


def reads_all(reader: Stage, source: Map) -> bool:
    """Whether a stage reads a tensor at as many points as it has, so that all of its checks are made there."""
    count = sympy.Mul(*(loop.size for loop in source.loops))
    for root, loops in _roots(reader):
        for node in walk(root):
            if isinstance(node, Load) and node.tensor == source.target:
                used = symbols_of(node)
                points = sympy.Mul(*(loop.size for loop in loops if loop.index in used))
                if sympy.expand(points - count).is_nonnegative:
                    return True
    return False


def checked_first(graph: StageGraph) -> StageGraph:
    """The graph, which writes into inputs, with its checks as stages of their own."""
    symbols = (index_symbol(f"k{number}") for number in itertools.count())
    stages: list[Stage] = []
    types = dict(graph.types)
    done: set[Expr] = set()
    for stage in graph.stages:
        for number, (check, loops) in enumerate(_checks(stage)):
            if check in done:
                continue
            done.add(check)
            name = f"{targets_of(stage)[0]}.checked{number}"
            types[name] = TensorType((), check.dtype)
            stages.append(_folded(name, check, loops, symbols, stage.origins))
        stages.append(unchecked(stage))
    return replace(graph, stages=tuple(stages), types=tuple(types.items()))


def unchecked(stage: Stage) -> Stage:
    """The stage that tells nothing."""
    return rewrite(stage, _silent) if tells(stage) else stage


def _silent(node: Expr) -> Expr:
    if isinstance(node, Load) and node.bindings:
        return replace(node, bindings=needed(node.bindings, node.index))
    return node.arguments[0] if isinstance(node, Apply) and node.op == "corrected" else node


def _checks(stage: Stage) -> Iterator[tuple[Expr, tuple[Loop, ...]]]:
    """The checks of a stage, without those inside them, each with the loops that it is made over."""
    if not tells(stage):
        return
    for root, loops in _roots(stage):
        if any(loop.size == 0 for loop in loops):
            continue
        for node in walk(root):
            if isinstance(node, Apply) and node.op == "corrected":
                check = replace(node, arguments=tuple(rewrite(part, _silent) for part in node.arguments))
                used = frozenset[sympy.Symbol]().union(*map(symbols_of, walk(check)))
                yield check, tuple(loop for loop in loops if loop.index in used)


def _roots(stage: Stage) -> Iterator[tuple[Expr, tuple[Loop, ...]]]:
    """Expressions, each with the loops that it is computed over."""
    if isinstance(stage, Concatenate):
        axis = stage.loops[stage.axis]
        for part in stage.parts:
            yield part.value, tuple(Loop(loop.index, part.size) if loop is axis else loop for loop in stage.loops)
    elif isinstance(stage, Scatter):
        base, *others = expressions_of(stage)
        yield base, stage.target_loops
        yield from ((value, stage.loops) for value in others)
    else:
        yield from ((value, loops_of(stage)) for value in expressions_of(stage))


def _folded(
    name: str, check: Expr, loops: tuple[Loop, ...], symbols: Iterator[sympy.Symbol], origins: tuple[str, ...]
) -> Stage:
    """One number that nothing reads; computing it makes the check at every point."""
    if not loops:
        return Map(name, (), check, origins)
    return renamed(Reduce((name,), (), loops, "sum", check, origins), {loop.index: next(symbols) for loop in loops})
