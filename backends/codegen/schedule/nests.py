"""Nests: neighbours that walk the same points become one.

Place: second step of ``build``. Input, output: a draft.
Two ways to combine a nest with an earlier one::

    same points:   for c: t[c] = exp(x[c])          for c (reduced): t[c] = exp(x[c]); s += t[c]
                   for c (reduced): s += t[c]   ->
    epilogue:      for c (reduced): s += x[c]       for c (reduced): s += x[c]
                   t = 1 / s                    ->  finish: t = 1 / s

Invariants: a value that one nest stores and the other touches is touched at the very point that stored it; everything
else between the two nests is independent of the one that moves.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import sympy

from mixbackend.backends.codegen.ir.grammar import loops_of
from mixbackend.backends.codegen.ir.kernel import KernelLoop, Nest, Store
from mixbackend.backends.codegen.schedule.draft import (
    Access,
    Draft,
    accesses_of,
    folds_positions,
    has_carry,
    nest_accesses,
)
from mixbackend.backends.codegen.schedule.rewrite import with_indices

Pairs = dict[sympy.Symbol, sympy.Symbol]

MAXIMUM_MATCHINGS = 24
"""Assignments of loops to loops that are tried: all of four loops of one size."""


def merge_nests(draft: Draft, movable: Callable[[Nest], bool] = lambda nest: True) -> Draft:
    """Combine every nest with the nearest earlier one that it fits.

    Args:
        movable: which nests may go into earlier ones.
    """
    merged: list[Nest] = []
    for nest in draft.nests:
        place, combined = _find_place(merged, nest) if movable(nest) else (0, None)
        if combined is None:
            merged.append(nest)
        else:
            merged[place] = combined
    return replace(draft, nests=tuple(merged))


def are_independent(first: Nest, second: Nest) -> bool:
    """Whether the two may run in either order."""
    return not any(True for _ in _conflicts(nest_accesses(first), nest_accesses(second)))


def _find_place(earlier: Sequence[Nest], nest: Nest) -> tuple[int, Nest | None]:
    for place in reversed(range(len(earlier))):
        combined = combine(earlier[place], nest)
        if combined is not None:
            return place, combined
        if not are_independent(earlier[place], nest):
            break
    return 0, None


def combine(first: Nest, second: Nest) -> Nest | None:
    """The nest that does both, ``None`` if there is none or nothing is gained."""
    if not (_is_plain(first) and _is_plain(second)):
        return None
    return _as_epilogue(first, second) or _at_same_points(first, second)


def _is_plain(nest: Nest) -> bool:
    """Whether different points never write the same element, and order matters to nothing but a carry."""
    if any(loop.mode == "ordered" for loop in nest.loops) and not has_carry(nest):
        return False
    stores = [item for item in (*nest.body, *nest.finish) if isinstance(item, Store)]
    return all(store.mode == "set" and not store.bindings and store.mask is None for store in stores)


# -- the second nest after the reduction of the first -------------------------------------------------------------


def _as_epilogue(first: Nest, second: Nest) -> Nest | None:
    if not first.reduced or second.reduced or has_carry(second):
        return None
    inside, after = accesses_of(first.body), accesses_of(first.finish)

    def fits(moved: Nest) -> bool:
        own = accesses_of(moved.body)
        return _only_same_points(after, own) and (not first.loops or not any(_conflicts(inside, own)))

    best = _best(first, second, _matchings(second.loops, first.loops), fits)
    return None if best is None else replace(first, finish=(*first.finish, *best.body))


# -- both in one body ---------------------------------------------------------------------------------------------


def _at_same_points(first: Nest, second: Nest) -> Nest | None:
    if second.reduced and not first.reduced:
        return _map_before_reduction(first, second)
    if has_carry(first) != has_carry(second) and (first.reduced or second.reduced):
        return None

    def fits(moved: Nest) -> bool:
        ordered = sum(1 for loop in _with_modes(first.loops, moved.loops) if loop.mode == "ordered")
        return ordered <= 1 and _bodies_fit(first, moved)

    matchings = _matchings_of_kinds(second, first)
    best = _best(first, second, matchings, fits)
    if best is None:
        return None
    return replace(
        first,
        loops=_with_modes(first.loops, best.loops),
        body=(*first.body, *best.body),
        finish=(*first.finish, *best.finish),
    )


def _map_before_reduction(first: Nest, second: Nest) -> Nest | None:
    """A map takes the indices of the reduction that follows it."""
    if has_carry(first):
        return None

    def fits(moved: Nest) -> bool:
        return _bodies_fit(moved, second)

    best = _best(second, first, _matchings(first.loops, loops_of(second)), fits)
    return None if best is None else replace(second, body=(*best.body, *second.body))


def _bodies_fit(first: Nest, second: Nest) -> bool:
    inside, after = accesses_of(first.body), accesses_of(first.finish)
    next_inside, next_after = accesses_of(second.body), accesses_of(second.finish)
    if any(_conflicts(after, next_inside)):
        return False
    kept = bool(first.loops or second.loops)
    if kept and (any(_conflicts(inside, next_after))):
        return False
    return _only_same_points(inside, next_inside) and _only_same_points(after, next_after)


def _matchings_of_kinds(source: Nest, target: Nest) -> Iterator[Pairs]:
    """Indices of ``source`` onto those of ``target``: kept onto kept, reduced onto reduced where both reduce."""
    if not source.reduced:
        yield from _matchings(source.loops, loops_of(target))
        return
    in_order = folds_positions(source) or folds_positions(target)
    for kept in _matchings(source.loops, target.loops):
        for reduced in _matchings(source.reduced, target.reduced):
            straight = list(reduced.values()) == [loop.index for loop in target.reduced]
            if straight or not in_order:
                yield {**kept, **reduced}


def _matchings(source: Sequence[KernelLoop], target: Sequence[KernelLoop]) -> Iterator[Pairs]:
    """Every way to pair loops of equal extent; the one in order comes first."""
    if len(source) != len(target):
        return
    for order in itertools.islice(itertools.permutations(target), MAXIMUM_MATCHINGS):
        if all(a.extent == b.extent for a, b in zip(source, order, strict=True)):
            yield {a.index: b.index for a, b in zip(source, order, strict=True)}


def _with_modes(loops: Sequence[KernelLoop], others: Sequence[KernelLoop]) -> tuple[KernelLoop, ...]:
    """A loop that runs in order for one of the two runs in order."""
    ordered = {loop.index for loop in (*loops, *others) if loop.mode == "ordered"}
    return tuple(replace(loop, mode="ordered") if loop.index in ordered else loop for loop in loops)


# -- choosing an assignment ---------------------------------------------------------------------------------------


def _best(stays: Nest, moves: Nest, matchings: Iterator[Pairs], fits: Callable[[Nest], bool]) -> Nest | None:
    """The moving nest under the assignment that shares most memory accesses, if it fits and gains anything."""
    best, best_score = None, -1
    for pairs in matchings:
        moved = _renamed(moves, pairs)
        score = _sharing(stays, moved)
        gains = score > 0 or not loops_of(moves)
        if gains and score > best_score and fits(moved):
            best, best_score = moved, score
    return best


def _renamed(nest: Nest, pairs: Pairs) -> Nest:
    changed = {old: new for old, new in pairs.items() if old != new}
    if not changed:
        return nest
    moved = with_indices(nest, changed, {})
    return replace(moved, loops=_renamed_loops(nest.loops, changed), reduced=_renamed_loops(nest.reduced, changed))


def _renamed_loops(loops: Sequence[KernelLoop], pairs: Pairs) -> tuple[KernelLoop, ...]:
    return tuple(replace(loop, index=pairs.get(loop.index, loop.index)) for loop in loops)


def _sharing(first: Nest, second: Nest) -> int:
    """Two for each element both touch at a point, one for neighbours at a fixed distance."""
    known: dict[str, list[sympy.Expr]] = {}
    for access in nest_accesses(first):
        known.setdefault(access.buffer, []).append(access.offset)
    loops = {loop.index for loop in loops_of(second)}
    score = 0
    for access in nest_accesses(second):
        offsets = known.get(access.buffer, ())
        if access.offset in offsets:
            score += 2
        elif any(not (access.offset - offset).free_symbols & loops for offset in offsets):
            score += 1
    return score


# -- dependences --------------------------------------------------------------------------------------------------


def _conflicts(first: Sequence[Access], second: Sequence[Access]) -> Iterator[tuple[Access, Access]]:
    """Pairs of touches of one buffer of which at least one writes."""
    for one, other in itertools.product(first, second):
        if one.buffer == other.buffer and (one.write or other.write):
            yield one, other


def _only_same_points(first: Sequence[Access], second: Sequence[Access]) -> bool:
    """Whether all that conflicts happens at one point: the same element, at no bound position."""
    return all(
        one.offset == other.offset and not one.dynamic and not other.dynamic for one, other in _conflicts(first, second)
    )
