"""Parallel nest fusion: nests that have nothing to do with each other share the parallel loop.

Place: in ``build``, after tiling. Input, output: a draft.
Before and after (a concatenation along the first dimension; ``k`` is the number of pieces)::

    for i < n: y[i] = a[i]                 for p < k (parallel):
    for j < m: y[n + j] = b[j]      ->         for i in piece p of n: y[i] = a[i]
                                               for j in piece p of m: y[n + j] = b[j]

Loops that all nests share go inside first where they make the nests' own loops longer.
Invariants: every nest is cut into the same number of pieces, however long it is, so that outer points do equal work.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import sympy

from mixbackend.backends.codegen.ir.grammar import loops_of
from mixbackend.backends.codegen.ir.indices import index_symbol
from mixbackend.backends.codegen.ir.kernel import KernelLoop, Nest, Store
from mixbackend.backends.codegen.schedule.collapse import collapse_nest
from mixbackend.backends.codegen.schedule.draft import Draft, nest_accesses, points_of
from mixbackend.backends.codegen.schedule.hints import Hints
from mixbackend.backends.codegen.schedule.loop_order import by_step
from mixbackend.backends.codegen.schedule.rewrite import with_indices
from mixbackend.backends.codegen.schedule.tiles import GRAIN, POINTS_PER_WORKER, Move, moved_inside, tile_count
from mixbackend.backends.codegen.targets.target import TargetTraits

LINE_ELEMENTS = sympy.Integer(64)
"""Pieces are multiples of this where that is known: different threads then write different cache lines."""


def fuse_flat_nests(draft: Draft) -> Draft:
    """Move outer loops inside where every nest then has one longer flat loop instead."""
    if not _is_independent(draft):
        return draft
    for loop in reversed(draft.outer):
        inside = moved_inside(draft, Move(loop, None))
        flat = tuple(map(collapse_nest, inside.nests))
        if all(len(new.loops) <= len(old.loops) for new, old in zip(flat, draft.nests, strict=True)):
            draft = replace(inside, nests=flat)
    return draft


def fuse_parallel_nests(draft: Draft, traits: TargetTraits, hints: Hints) -> Draft:
    """Cut the loop with the largest step of every nest, if that is what gives the target enough to do at once."""
    wanted = POINTS_PER_WORKER * traits.parallel_width
    total = sum(points_of(loops_of(nest), hints) for nest in draft.nests)
    missing = -(-wanted // max(points_of(draft.outer, hints), 1))
    count = min(missing, total // GRAIN)
    if count < 2 or not _is_independent(draft):
        return draft
    pieces = KernelLoop(index_symbol("piece"), sympy.Integer(count), "parallel")
    nests = tuple(_cut(nest, pieces, hints) for nest in draft.nests)
    return replace(draft, outer=(*draft.outer, pieces), nests=nests)


def _is_independent(draft: Draft) -> bool:
    """Whether there are several nests, all plain maps, none of which touches what another stores."""
    if len(draft.nests) < 2 or draft.scratch:
        return False
    for nest in draft.nests:
        stores = [item for item in nest.body if isinstance(item, Store)]
        plain = all(item.mode == "set" and not item.bindings and item.mask is None for item in stores)
        if not plain or nest.reduced or any(loop.mode == "ordered" for loop in nest.loops) or not nest.loops:
            return False
    return all(_are_apart(draft, *pair) for pair in itertools.combinations(draft.nests, 2))


def _are_apart(draft: Draft, first: Nest, second: Nest) -> bool:
    for one, other in itertools.product(nest_accesses(first), nest_accesses(second)):
        if one.buffer != other.buffer or not (one.write or other.write):
            continue
        if not (one.write and other.write and one.buffer in draft.disjoint):
            return False
    return True


def _cut(nest: Nest, pieces: KernelLoop, hints: Hints) -> Nest:
    loop = by_step(nest.loops, nest_accesses(nest), hints)[0]
    width = tile_count(loop.extent, pieces.extent)
    if width.is_Integer and width > LINE_ELEMENTS:
        width = tile_count(width, LINE_ELEMENTS) * LINE_ELEMENTS
    even = width * pieces.extent == loop.extent
    extent = width if even else sympy.Max(0, sympy.Min(width, loop.extent - width * pieces.index))
    inner = KernelLoop(index_symbol(f"{loop.index.name}_in"), extent)
    values = {loop.index: width * pieces.index + inner.index}
    ranges = {pieces.index: pieces.extent, inner.index: width}
    moved = with_indices(nest, values, ranges)
    return replace(moved, loops=tuple(inner if item is loop else item for item in nest.loops))
