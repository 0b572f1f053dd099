"""Collapse: loops of one value vanish, loops that walk memory as one become one.

Place: in ``build``, before and after loops are tiled. Input, output: a draft.
Before and after::

    for h < H: for w < W: y[h * W + w] = x[h * W + w]      ->      for w < H * W: y[w] = x[w]

Invariants: two loops become one only if everything that uses either is linear in the common index: every offset and
every index that is computed with. Ordered loops merge with ordered ones next to them; where positions are folded,
reduced loops merge in their order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import sympy

from mixbackend.backends.codegen.ir.grammar import all_index_expressions
from mixbackend.backends.codegen.ir.kernel import KernelLoop, Nest
from mixbackend.backends.codegen.schedule.draft import Draft, coefficient, folds_positions
from mixbackend.backends.codegen.schedule.rewrite import with_indices

Loops = tuple[KernelLoop, ...]
ZERO = sympy.Integer(0)


def drop_single_points(draft: Draft) -> Draft:
    """Remove loops of one value; a reduction keeps one loop."""
    outer = tuple(loop for loop in draft.outer if loop.extent != 1)
    gone = [loop.index for loop in draft.outer if loop.extent == 1]
    nests = tuple(_drop_inner(with_indices(nest, dict.fromkeys(gone, ZERO), {})) for nest in draft.nests)
    return replace(draft, outer=outer, nests=nests)


def _drop_inner(nest: Nest) -> Nest:
    loops = tuple(loop for loop in nest.loops if loop.extent != 1)
    reduced = tuple(loop for loop in nest.reduced if loop.extent != 1) or nest.reduced[:1]
    kept = {loop.index for loop in (*loops, *reduced)}
    gone = [loop.index for loop in (*nest.loops, *nest.reduced) if loop.index not in kept]
    return with_indices(replace(nest, loops=loops, reduced=reduced), dict.fromkeys(gone, ZERO), {})


def collapse_loops(draft: Draft) -> Draft:
    """Merge outer loops with outer ones, and in every nest kept loops with kept ones and reduced with reduced."""
    return collapse_outer(replace(draft, nests=tuple(map(collapse_nest, draft.nests))))


def collapse_outer(draft: Draft) -> Draft:
    """Merge outer loops; extents of inner loops must not use them."""
    tiled = {
        symbol for nest in draft.nests for loop in (*nest.loops, *nest.reduced) for symbol in loop.extent.free_symbols
    }
    uses = list(dict.fromkeys(all_index_expressions(*draft.nests)))

    def mergeable(first: KernelLoop, second: KernelLoop) -> bool:
        return not {first.index, second.index} & tiled and _walks_as_one(first, second, uses)

    outer, gone = _merge(draft.outer, mergeable, any_order=True)
    nests = tuple(with_indices(nest, dict.fromkeys(gone, ZERO), {}) for nest in draft.nests) if gone else draft.nests
    return replace(draft, outer=outer, nests=nests)


def collapse_nest(nest: Nest) -> Nest:
    """Merge the loops of one nest."""
    uses = list(dict.fromkeys(all_index_expressions(nest)))

    def mergeable(first: KernelLoop, second: KernelLoop) -> bool:
        return first.mode == second.mode and _walks_as_one(first, second, uses)

    ordered = any(loop.mode == "ordered" for loop in nest.loops)
    loops, gone = _merge(nest.loops, mergeable, any_order=not ordered)
    reduced, also_gone = _merge(nest.reduced, mergeable, any_order=not folds_positions(nest))
    if not gone and not also_gone:
        return nest
    return with_indices(replace(nest, loops=loops, reduced=reduced), dict.fromkeys([*gone, *also_gone], ZERO), {})


def _merge(
    loops: Loops, mergeable: Callable[[KernelLoop, KernelLoop], bool], any_order: bool
) -> tuple[Loops, list[sympy.Symbol]]:
    """Merge while anything merges; the inner loop of a pair stays, as long as both.

    Returns:
        The loops left, and the indices that are zero from now on.
    """
    gone: list[sympy.Symbol] = []
    while True:
        pair = next((pair for pair in _pairs(loops, any_order) if mergeable(*pair)), None)
        if pair is None:
            return loops, gone
        first, second = pair
        longer = replace(second, extent=sympy.expand(first.extent * second.extent))
        loops = tuple(longer if loop is second else loop for loop in loops if loop is not first)
        gone.append(first.index)


def _pairs(loops: Sequence[KernelLoop], any_order: bool) -> Iterator[tuple[KernelLoop, KernelLoop]]:
    return itertools.permutations(loops, 2) if any_order else itertools.pairwise(loops)


def _walks_as_one(first: KernelLoop, second: KernelLoop, uses: Sequence[sympy.Expr]) -> bool:
    for expression in uses:
        if not expression.free_symbols & {first.index, second.index}:
            continue
        far, near = coefficient(expression, first.index), coefficient(expression, second.index)
        if far is None or near is None or sympy.expand(near * second.extent - far) != 0:
            return False
    return True
