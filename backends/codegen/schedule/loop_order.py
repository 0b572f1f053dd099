"""Loop order: what walks memory in the smallest steps runs innermost.

Place: in ``build``, for outer loops before they are tiled and for the loops of every nest at the end.
Invariants: ordered loops keep their order, a carry's loop is the last of its nest; reduced loops keep theirs where
positions are folded; a vector is the last loop of its kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import sympy

from mixbackend.backends.codegen.ir.kernel import KernelLoop, Nest
from mixbackend.backends.codegen.schedule.draft import Access, Draft, folds_positions, has_carry, nest_accesses
from mixbackend.backends.codegen.schedule.hints import Hints, estimate

Loops = tuple[KernelLoop, ...]


def order_outer(draft: Draft, hints: Hints) -> Draft:
    """Outer loops by falling step."""
    accesses = [access for nest in draft.nests for access in nest_accesses(nest)]
    return replace(draft, outer=by_step(draft.outer, accesses, hints))


def order_nest(nest: Nest, hints: Hints) -> Nest:
    """Loops of a nest by falling step, within what their kinds allow."""
    accesses = nest_accesses(nest)
    vector = tuple(loop for loop in nest.loops if loop.mode == "vector")
    ordered = tuple(loop for loop in nest.loops if loop.mode == "ordered")
    free = by_step([loop for loop in nest.loops if loop not in (*vector, *ordered)], accesses, hints)
    loops = (*free, *vector, *ordered) if has_carry(nest) else (*ordered, *free, *vector)
    if folds_positions(nest):
        return replace(nest, loops=loops)
    inner = tuple(loop for loop in nest.reduced if loop.mode == "vector")
    reduced = by_step([loop for loop in nest.reduced if loop not in inner], accesses, hints)
    return replace(nest, loops=loops, reduced=(*reduced, *inner))


def by_step(loops: Sequence[KernelLoop], accesses: Iterable[Access], hints: Hints) -> Loops:
    """Loops from the largest step in memory to the smallest; those of equal step as they were."""
    ranked = sorted(accesses, key=lambda access: not access.write)
    return tuple(sorted(loops, key=lambda loop: -_step(loop.index, ranked, hints)))


def _step(index: sympy.Symbol, accesses: Iterable[Access], hints: Hints) -> int:
    """Elements between neighbours in the first access that the index moves: stores tell before reads."""
    for access in accesses:
        stride = access.stride(index)
        if stride is not None and stride != 0:
            return estimate(sympy.Abs(stride), hints)
    return 0
