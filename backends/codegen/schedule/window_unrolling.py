"""Window unrolling (unroll and jam): neighbouring windows at a time, so that what they share is read once.

Place: in ``build``, after vectors are chosen. Input, output: a draft. Nests are changed that multiply windows of one
tensor by weights, vectors of which are the same for all windows: depthwise convolutions over channels-last images.
Before and after (a row of three taps; ``k`` runs over the rows)::

    for w < 56: for c (vector):                     for v < 7: for c (vector):
        for k < 3: s += x[h+k-1, w-1, c] * w[k, 0, c]      for k in range of h: s0 += x[h+k-1, 8v-1, c] * w[k, 0, c]
                      + ...                          ->                          ...  (s0 to s7)
        y[h, w, c] = s                                     y[h, 8v, c] = s0; ...; y[h, 8v+7, c] = s7

Two steps: rows of taps that lie in the padding are left out of the loop, since they would add zeros; then the loop
along which windows slide is cut into strips, what is left over in a nest of its own. Inside a strip most windows are
certainly inside the image: their conditions are dropped.
Invariants: every window is computed once, from the same terms in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import sympy

from mixbackend.backends.codegen.ir.grammar import rewrite, walk
from mixbackend.backends.codegen.ir.indices import FloorDiv, index_symbol
from mixbackend.backends.codegen.ir.kernel import Accumulate, KernelLoop, Let, Nest, Statement, Store
from mixbackend.backends.codegen.ir.scalar import Apply, Expr, Local, Read
from mixbackend.backends.codegen.schedule.conditions import comparison, parts_of, without
from mixbackend.backends.codegen.schedule.draft import Access, Draft, accesses_of, coefficient, local_names
from mixbackend.backends.codegen.schedule.rewrite import with_indices
from mixbackend.backends.codegen.schedule.vectorize import vector_of
from mixbackend.backends.codegen.targets.target import TargetTraits

WIDEST_STRIP = 8
"""Windows of a strip at most: each needs registers for its sums."""

LEAST_STRIP = 4
"""Windows from which a strip divides a loop well enough that none are left over."""

FEWEST_STRIP = 2

WIDE_VECTOR_BYTES = 64
"""Machines with vectors that wide have 32 registers, others 16."""


def unroll_windows(draft: Draft, traits: TargetTraits) -> Draft:
    """Cut loops along which windows slide into strips."""
    widest = WIDEST_STRIP if traits.vector_bytes >= WIDE_VECTOR_BYTES else LEAST_STRIP
    nests: list[Nest] = []
    for nest in draft.nests:
        vector = vector_of(nest)
        inner = {loop.index for loop in nest.loops if loop.mode == "serial"}
        slide = sliding_loop(nest, nest.loops, vector) if vector is not None else None
        if slide is None or slide.index not in inner:
            nests.append(nest)
        else:
            nests += _stripped(_without_padding_rows(nest, slide, draft.outer), slide, draft.outer, widest)
    return replace(draft, nests=tuple(nests))


# -- where windows slide ----------------------------------------------------------------------------------------------


def sliding_loop(nest: Nest, loops: Iterable[KernelLoop], vector: sympy.Symbol) -> KernelLoop | None:
    """The loop along which windows of one tensor slide over each other while vectors of weights stay the same.

    Args:
        loops: to choose from.
        vector: the index of the vector loop.
    """
    if any(loop.index == vector for loop in nest.reduced) or not _is_plain(nest):
        return None
    accesses = [access for access in accesses_of(nest.body) if not access.write and access.stride(vector) == 1]
    for loop in loops:
        stay = any(access.stride(loop.index) == 0 for access in accesses)
        if stay and loop.index != vector and _slides(accesses, loop.index):
            return loop
    return None


def _slides(accesses: Iterable[Access], index: sympy.Symbol) -> bool:
    """Whether two reads of a point are what one read is at neighbouring points."""
    known: dict[str, list[Access]] = {}
    for access in accesses:
        step = access.stride(index)
        for other in known.get(access.buffer, ()):
            distance = sympy.expand(access.offset - other.offset)
            steps = sympy.simplify(distance / step) if step else sympy.Integer(0)
            if steps.is_Integer and steps != 0:
                return True
        known.setdefault(access.buffer, []).append(access)
    return False


def _is_plain(nest: Nest) -> bool:
    """Whether points may be computed in any order and each statement may be written out for several of them."""
    if any(loop.mode == "ordered" for loop in nest.loops):
        return False
    for item in (*nest.body, *nest.finish):
        if isinstance(item, Store):
            plain = item.mode == "set" and not item.bindings and item.mask is None and not item.atomic
        else:
            plain = isinstance(item, Let) or (isinstance(item, Accumulate) and item.kind == "sum")
        if not plain:
            return False
    return True


# -- rows in the padding ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bounds:
    """Values of a reduced loop outside of which a condition is false: from ``start``, below ``stop``."""

    start: sympy.Expr
    stop: sympy.Expr


def _without_padding_rows(nest: Nest, slide: KernelLoop, outer: tuple[KernelLoop, ...]) -> Nest:
    """Reduced loops without the values for which everything that is added is zero, for all windows of a strip."""
    values = [item.value for item in nest.body if isinstance(item, Accumulate)]
    if len(values) != len(nest.body) or not values:
        return nest
    fixed = {loop.index for loop in (*outer, *nest.loops) if loop.mode != "vector" and loop is not slide}
    for loop in nest.reduced:
        needed = frozenset.intersection(*map(_needed, values))
        conditions = {item: _bounds(item, loop, fixed) for item in sorted(needed, key=str)}
        bounds = {item: bound for item, bound in conditions.items() if bound is not None}
        if bounds:
            nest = _narrowed(nest, loop, bounds)
            values = [item.value for item in nest.body if isinstance(item, Accumulate)]
    return nest


def _needed(value: Expr) -> frozenset[Expr]:
    """Conditions without which a value is zero."""
    if isinstance(value, Read):
        return frozenset(parts_of(value.mask)) if value.other == 0 else frozenset()
    if not isinstance(value, Apply):
        return frozenset()
    if value.op == "mul":
        return frozenset.union(*map(_needed, value.arguments))
    if value.op in ("add", "to_dtype"):
        return frozenset.intersection(*map(_needed, value.arguments))
    return frozenset()


def _bounds(condition: Expr, loop: KernelLoop, fixed: set[sympy.Symbol]) -> _Bounds | None:
    """Where a condition on one loop, and outer ones, holds."""
    sides = comparison(condition)
    if sides is None:
        return None
    left, right = sides
    rest = sympy.expand(left - loop.index)
    indices = {symbol for symbol in (rest.free_symbols | right.free_symbols) if not symbol.is_positive}
    if coefficient(left, loop.index) != 1 or loop.index in right.free_symbols or not indices <= fixed:
        return None
    edge = sympy.expand(right - rest)
    assert isinstance(condition, Apply)
    zero = sympy.Integer(0)
    return _Bounds(edge, loop.extent) if condition.op == "ge" else _Bounds(zero, edge)


def _narrowed(nest: Nest, loop: KernelLoop, bounds: dict[Expr, _Bounds]) -> Nest:
    """The nest with a reduced loop that runs only where conditions hold, which are gone."""
    zero = sympy.Integer(0)
    start = sympy.Max(zero, *(bound.start for bound in bounds.values()))
    stop = sympy.Min(loop.extent, *(bound.stop for bound in bounds.values()))
    inner = KernelLoop(index_symbol(f"{loop.index.name}_row"), sympy.Max(zero, stop - start))
    nest = replace(nest, body=tuple(without(item, bounds.keys()) for item in nest.body))
    moved = with_indices(nest, {loop.index: start + inner.index}, {inner.index: loop.extent})
    return replace(moved, reduced=tuple(inner if item is loop else item for item in nest.reduced))


# -- strips -----------------------------------------------------------------------------------------------------------


def _stripped(nest: Nest, slide: KernelLoop, outer: tuple[KernelLoop, ...], widest: int) -> list[Nest]:
    """A nest of strips, and one of the windows that are left over, where there may be some."""
    width = _width(slide.extent, widest)
    if width < FEWEST_STRIP:
        return [nest]
    place = _Place.of(slide, outer)
    strips = KernelLoop(index_symbol(f"{slide.index.name}_strip"), _quotient(slide.extent, width))
    copies = [_copied(nest, slide, strips, place, width, number) for number in range(width)]
    loops = tuple(strips if loop is slide else loop for loop in nest.loops)
    made = [
        Nest(
            loops,
            nest.reduced,
            tuple(item for copy in copies for item in copy.body),
            tuple(item for copy in copies for item in copy.finish),
        )
    ]
    if not _is_multiple(slide.extent, width):
        rest = KernelLoop(index_symbol(f"{slide.index.name}_rest"), slide.extent - width * strips.extent)
        moved = with_indices(
            nest, {slide.index: width * strips.extent + rest.index}, {rest.index: sympy.Integer(width)}
        )
        made.append(replace(moved, loops=tuple(rest if loop is slide else loop for loop in nest.loops)))
    return made


@dataclass(frozen=True)
class _Place:
    """Where a sliding loop is in the whole row: ``window`` is its number there, which is below ``count``."""

    window: sympy.Expr
    count: sympy.Expr

    @staticmethod
    def of(slide: KernelLoop, outer: tuple[KernelLoop, ...]) -> _Place:
        """Of a loop, or of one tile of it (see ``tiles.tile_extent``)."""
        extent = slide.extent
        if extent.func is sympy.Min and len(extent.args) == 2:
            for tile, left in (extent.args, extent.args[::-1]):
                for loop in outer:
                    count = sympy.expand(left + tile * loop.index)
                    if loop.index in left.free_symbols and loop.index not in count.free_symbols:
                        return _Place(tile * loop.index + slide.index, count)
        return _Place(slide.index, extent)


def _copied(nest: Nest, slide: KernelLoop, strips: KernelLoop, place: _Place, width: int, number: int) -> Nest:
    """The statements of the ``number``-th window of a strip."""
    names = {name: f"{name}.{number}" for name in local_names((*nest.body, *nest.finish))}

    def named(item: Expr) -> Expr:
        return replace(item, name=names.get(item.name, item.name)) if isinstance(item, Local) else item

    def statement(item: Statement) -> Statement:
        item = without(item, _certain(item, slide, place, width, number))
        item = rewrite(item, named)
        if isinstance(item, Accumulate):
            return replace(item, names=tuple(names[name] for name in item.names))
        return replace(item, name=names[item.name]) if isinstance(item, Let) else item

    values, ranges = {slide.index: width * strips.index + number}, {strips.index: strips.extent}
    body, finish = (tuple(map(statement, part)) for part in (nest.body, nest.finish))
    return with_indices(replace(nest, body=body, finish=finish), values, ranges)


def _certain(statement: Statement, slide: KernelLoop, place: _Place, width: int, number: int) -> list[Expr]:
    """Conditions of a statement that always hold for the ``number``-th window of a strip."""
    masks = {node.mask for node in walk(statement) if isinstance(node, Read) and node.mask}
    conditions = dict.fromkeys(part for mask in masks for part in parts_of(mask))
    return [item for item in conditions if _holds(item, slide, place, width, number)]


def _holds(condition: Expr, slide: KernelLoop, place: _Place, width: int, number: int) -> bool:
    sides = comparison(condition)
    if sides is None:
        return False
    left, right = sides
    step = coefficient(left, slide.index)
    if step is None or not step.is_Integer or step <= 0:
        return False
    start = sympy.expand(left - step * place.window)
    if any(not symbol.is_positive for symbol in start.free_symbols | right.free_symbols):
        return False
    assert isinstance(condition, Apply)
    if condition.op == "ge":
        return bool(sympy.expand(start + step * number - right).is_nonnegative)
    last = start + step * (place.count - width + number)
    return bool(sympy.expand(right - last).is_positive)


def _width(extent: sympy.Expr, widest: int) -> int:
    """Windows of a strip: as many as divide the loop, else as many as there may be."""
    numbers = [int(part) for part in _terms(extent) if part.is_Integer]
    if extent.is_Integer and extent < LEAST_STRIP:
        return int(extent)
    even = [width for width in range(widest, LEAST_STRIP - 1, -1) if _is_multiple(extent, width)]
    return even[0] if even else min([widest, *numbers])


def _terms(extent: sympy.Expr) -> tuple[sympy.Expr, ...]:
    """Numbers that an extent is the least of."""
    return extent.args if extent.func is sympy.Min else (extent,)


def _is_multiple(extent: sympy.Expr, width: int) -> bool:
    """Whether a loop has no windows left over; of tiles, whether that holds for whole ones and the last."""
    parts = [math.gcd(*map(int, _factors(part))) if _factors(part) else 1 for part in _terms(extent)]
    return all(part % width == 0 for part in parts)


def _factors(expression: sympy.Expr) -> list[sympy.Integer]:
    """Integer factors of all terms of a sum; empty where a term has none."""
    found = [term.as_coeff_Mul()[0] for term in sympy.Add.make_args(sympy.expand(expression))]
    return found if all(item.is_Integer for item in found) else []


def _quotient(extent: sympy.Expr, width: int) -> sympy.Expr:
    return FloorDiv(extent, sympy.Integer(width))
