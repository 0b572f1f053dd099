"""Tiles: which outer loops move into the nests, whole or cut into tiles.

Place: in ``build``, after loops were merged and before each nest is ordered and vectorised.
Input, output: a draft. What it decides:

- a loop along which memory is contiguous has to be inside to become a vector: a flat pointwise loop is cut into chunks,
  a reduction over rows of a matrix gets tiles of columns;
- transposes are cut along both contiguous loops, so that a cache line is used while it is near;
- small outer points are put together, as long as enough of them are left to run in parallel.

Invariants: scratch gets one more dimension for every loop that moves inside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from mixbackend.backends.codegen.ir.grammar import loops_of, rewrite
from mixbackend.backends.codegen.ir.indices import FloorDiv, index_symbol
from mixbackend.backends.codegen.ir.kernel import KernelLoop, Nest, Scratch, Statement, Store
from mixbackend.backends.codegen.ir.scalar import Expr, Read
from mixbackend.backends.codegen.schedule.draft import Access, Draft, nest_accesses, points_of
from mixbackend.backends.codegen.schedule.hints import Hints, estimate
from mixbackend.backends.codegen.schedule.rewrite import with_indices
from mixbackend.backends.codegen.schedule.vectorize import LARGEST_UNROLLED, Costs
from mixbackend.backends.codegen.schedule.window_unrolling import sliding_loop
from mixbackend.backends.codegen.targets.target import TargetTraits

GRAIN = 4096
"""Points of one outer point that make its start cheap."""

LEAST_GRAIN = 1024
"""Points down to which flat loops are cut for the sake of parallelism."""

LEAST_COLUMNS = 64
"""Contiguous values of a tile at least, so that cache lines and vectors are whole."""

MOST_COLUMNS = 1024

TRANSPOSE_AREA = 16384
"""Elements of a tile of a transpose. With rows of several kilobytes every row is a page of its own: a tile takes longer
pieces of few of them, and fits into the second cache."""

LONGEST_RUN = 512
"""Elements that are contiguous on both sides up to which the order of runs matters: shorter than a page."""

PAGE = 4096
"""Bytes of the smallest pages of memory."""

LEAST_TRANSPOSE_SIDE, MOST_TRANSPOSE_SIDE = 32, 256
LEAST_GAIN = 0.8
"""Share of the cost of nests that vectorise by themselves below which an outer loop is taken from them."""

POINTS_PER_WORKER = 4
"""Outer points per parallel unit that balance the load."""


@dataclass(frozen=True)
class Move:
    """An outer loop that goes inside.

    Attributes:
        tile: values of a tile; ``None`` to move the whole loop.
        contiguous: whether neighbours along it are neighbours in scratch; otherwise it is scratch's slowest dimension.
    """

    loop: KernelLoop
    tile: int | None
    contiguous: bool = False


def raise_loops(draft: Draft) -> Draft:
    """One nest alone: all its kept loops that run in any order become outer, to be cut as memory wants it."""
    if len(draft.nests) != 1 or draft.scratch:
        return draft
    (nest,) = draft.nests
    free = tuple(replace(loop, mode="parallel") for loop in nest.loops if loop.mode != "ordered")
    stay = tuple(loop for loop in nest.loops if loop.mode == "ordered")
    return replace(draft, outer=(*draft.outer, *free), nests=(replace(nest, loops=stay),))


def tile_loops(draft: Draft, traits: TargetTraits, hints: Hints) -> Draft:
    """Move loops inside where that pays."""
    choice = _Choice(draft, traits, hints)
    for move in choice.moves():
        draft = moved_inside(draft, move)
    return draft


class _Choice:
    """Decides for one draft."""

    def __init__(self, draft: Draft, traits: TargetTraits, hints: Hints) -> None:
        self._draft = draft
        self._hints = hints
        self._costs = Costs.of(traits, draft.dtypes, hints)
        self._scratch_limit = traits.scratch_bytes
        self._wanted = POINTS_PER_WORKER * traits.parallel_width

    def moves(self) -> list[Move]:
        """Loops to move, the one to become the vector first."""
        vector = self._vector_loop()
        partner = None if vector is None else self._transposed(vector)
        if vector is not None and partner is not None:
            return self._square(vector, partner)
        moves = []
        slide = self._sliding(vector)
        if vector is not None and slide is not None:
            return [replace(self._cut(vector, self._narrow(vector, slide)), contiguous=True), Move(slide, None)]
        if vector is not None:
            moves.append(replace(self._cut(vector, self._width(vector)), contiguous=True))
            moves += [Move(loop, None) for loop in self._within_lines(vector)] or self._crossed(vector)
        return [*moves, *self._more(moves)]

    # -- the vector -----------------------------------------------------------------------------------------------

    def _vector_loop(self) -> KernelLoop | None:
        """The outer loop that belongs inside, ``None`` if the nests vectorise as well by themselves."""
        nests = self._draft.nests
        best, lowest = None, LEAST_GAIN * sum(self._costs.best(nest)[0] for nest in nests)
        for loop in self._draft.outer:
            cost = sum(self._costs.best(nest, (loop,))[0] for nest in nests)
            if cost < lowest and self._fits(loop):
                best, lowest = loop, cost
        return best

    def _sliding(self, vector: KernelLoop | None) -> KernelLoop | None:
        """The loop along which windows slide, see ``window_unrolling``."""
        if vector is None or len(self._draft.nests) != 1 or self._draft.scratch:
            return None
        return sliding_loop(self._draft.nests[0], self._draft.outer, vector.index)

    def _narrow(self, vector: KernelLoop, slide: KernelLoop) -> int:
        """Values of the vector loop in one tile where whole rows of windows are inside."""
        rows = points_of([loop for loop in self._draft.outer if loop is not slide], self._hints)
        balanced = max(rows // self._wanted, 2 * self._costs.lanes)
        return min(self._width(vector), balanced // self._costs.lanes * self._costs.lanes)

    def _within_lines(self, vector: KernelLoop) -> list[KernelLoop]:
        """Short loops with values that are written to one cache line: outside, several threads would write it."""
        if self._draft.scratch:
            return []
        stores = [access for nest in self._draft.nests for access in nest_accesses(nest) if access.write]
        return [
            loop
            for loop in self._draft.outer
            if loop is not vector
            and loop.extent.is_Integer
            and loop.extent <= LARGEST_UNROLLED
            and any(access.stride(loop.index) in (1, 2, 4) for access in stores)
        ]

    def _fits(self, loop: KernelLoop) -> bool:
        """Whether scratch of a few vectors of this loop is small enough."""
        least = min(points_of((loop,), self._hints), 2 * self._costs.lanes)
        return self._scratch_bytes() * least <= self._scratch_limit

    def _scratch_bytes(self) -> int:
        """Of one outer point, as the draft is."""
        return sum(estimate(item.elements, self._hints) * item.dtype.itemsize for item in self._draft.scratch)

    def _width(self, loop: KernelLoop) -> int:
        """Values of the vector loop to have in one tile."""
        inside = max(sum(points_of(loops_of(nest), self._hints) for nest in self._draft.nests), 1)
        total = points_of(self._draft.outer, self._hints)
        balanced = max(total // self._wanted, 1)
        if inside == 1:
            return min(GRAIN, max(balanced, LEAST_GRAIN))
        if len(self._draft.nests) > 1:
            # Every nest goes over the tile: it should stay in the cache from one to the next.
            balanced = min(balanced, 4 * GRAIN // inside)
        width = min(MOST_COLUMNS, max(LEAST_COLUMNS, balanced))
        bytes_each = self._scratch_bytes()
        if bytes_each:
            width = min(width, max(self._scratch_limit // bytes_each, 1))
        lanes = self._costs.lanes
        width = max(width // lanes * lanes, lanes)
        slides = any(sliding_loop(nest, nest.loops, loop.index) is not None for nest in self._draft.nests)
        return self._balanced(loop, width) if slides else width

    def _balanced(self, loop: KernelLoop, width: int) -> int:
        """A smaller width where there are so few tiles that one worker would have much more to do than the others."""
        extent = points_of((loop,), self._hints)
        others = points_of([item for item in self._draft.outer if item is not loop], self._hints)
        workers = self._wanted // POINTS_PER_WORKER

        def longest_share(tile: int) -> int:
            return -(-(-(-extent // tile) * others) // workers) * min(tile, extent)

        shares = {tile: longest_share(tile) for tile in range(width, 0, -self._costs.lanes)}
        best = min(shares, key=lambda tile: (shares[tile], -tile))
        return best if shares[best] < LEAST_GAIN * shares[width] else width

    # -- transposes -----------------------------------------------------------------------------------------------

    def _transposed(self, vector: KernelLoop) -> KernelLoop | None:
        """Another outer loop along which some access is contiguous that jumps along the vector."""
        nests = self._draft.nests
        if self._draft.scratch or any(loops_of(nest) for nest in nests) or not self._is_long(vector):
            return None
        accesses = [access for nest in nests for access in nest_accesses(nest)]
        jumping = [access for access in accesses if access.stride(vector.index) not in (None, 0, 1)]
        others = [loop for loop in self._draft.outer if loop is not vector and self._is_long(loop)]
        counts = {loop: sum(1 for access in jumping if access.stride(loop.index) == 1) for loop in others}
        best = max(others, key=lambda loop: counts[loop], default=None)
        return best if best is not None and counts[best] else None

    def _square(self, vector: KernelLoop, partner: KernelLoop) -> list[Move]:
        """Tiles of a transpose, longer along the vector, where whole lines are written."""
        least, most = LEAST_TRANSPOSE_SIDE, MOST_TRANSPOSE_SIDE
        area = self._transpose_area()
        rows, columns = (_power_of_two(2 * points_of((loop,), self._hints) - 1) for loop in (partner, vector))
        width = min(most, columns, max(least, area // min(2 * least, rows)))
        height = min(most, max(least, area // width))
        return [self._cut(vector, width), self._cut(partner, height)]

    def _crossed(self, vector: KernelLoop) -> list[Move]:
        """Tiles of two loops where short runs are read in one order and written in another, far apart."""
        run = points_of((vector,), self._hints)
        if len(self._draft.nests) != 1 or self._draft.scratch or not 0 < run <= LONGEST_RUN:
            return []
        (nest,) = self._draft.nests
        others = [loop for loop in self._draft.outer if loop is not vector]
        runs = [access for access in nest_accesses(nest) if access.stride(vector.index) == 1]
        near = {access: self._nearest(access, others) for access in runs}
        written = next((loop for access, loop in near.items() if access.write), None)
        if loops_of(nest) or written is None or None in near.values():
            return []
        crossed = (loop for access, loop in near.items() if loop is not written and self._leaves_page(access, written))
        other = next(crossed, None)
        if other is None:
            return []
        pieces = self._transpose_area() // _power_of_two(2 * run - 1)
        side = _power_of_two(max(math.isqrt(pieces), 1))
        return [self._cut(written, side), self._cut(other, pieces // side)] if side > 1 else []

    def _leaves_page(self, access: Access, loop: KernelLoop) -> bool:
        """Whether neighbours along a loop lie on different pages."""
        stride = access.stride(loop.index)
        size = self._draft.dtypes[access.buffer].itemsize
        return stride is not None and estimate(sympy.Abs(stride), self._hints) * size > PAGE

    def _nearest(self, access: Access, loops: Sequence[KernelLoop]) -> KernelLoop | None:
        """The loop of the smallest step, if the access moves along all of them."""
        strides = {loop: access.stride(loop.index) for loop in loops}
        steps = {loop: estimate(stride, self._hints) for loop, stride in strides.items() if stride is not None}
        if len(steps) < len(loops) or not all(steps.values()):
            return None
        return min(loops, key=lambda loop: steps[loop], default=None)

    def _transpose_area(self) -> int:
        """Elements of a tile, a power of two: fewer where there are few tiles for the threads."""
        total = points_of(self._draft.outer, self._hints)
        return _power_of_two(min(TRANSPOSE_AREA, max(total // self._wanted, LEAST_TRANSPOSE_SIDE**2)))

    def _is_long(self, loop: KernelLoop) -> bool:
        return points_of((loop,), self._hints) >= self._costs.lanes // 2

    # -- more points ----------------------------------------------------------------------------------------------

    def _more(self, moves: Sequence[Move]) -> list[Move]:
        """Loops that join the vector inside until an outer point is large, innermost first."""
        taken = {move.loop.index for move in moves}
        left = [loop for loop in self._draft.outer if loop.index not in taken]
        points_each = max(sum(points_of(loops_of(nest), self._hints) for nest in self._draft.nests), 1)
        inside = points_each
        for move in moves:
            inside *= min(points_of((move.loop,), self._hints), move.tile or GRAIN)
        scratch = self._scratch_bytes() * max(inside // points_each, 1)
        tiles = sum(-(-points_of((move.loop,), self._hints) // move.tile) for move in moves if move.tile) or 1
        found: list[Move] = []
        for loop in reversed(left):
            outside = tiles * points_of(
                [item for item in left if item not in [move.loop for move in found]], self._hints
            )
            room = min(GRAIN // max(inside, 1), outside // self._wanted, self._scratch_limit // max(scratch, 1))
            # Together, several nests go through memory of their own instead of registers: only for very small points.
            if room < (2 if len(self._draft.nests) == 1 else 8):
                break
            move = self._cut(loop, 1 << (room.bit_length() - 1))
            found.append(move)
            if move.tile is not None:
                break
            inside *= points_of((loop,), self._hints)
            scratch *= points_of((loop,), self._hints)
        return found

    def _cut(self, loop: KernelLoop, width: int) -> Move:
        """Tiles of about a width: none if the loop is not longer, of equal length where the extent is known."""
        if not loop.extent.is_Integer:
            return Move(loop, width)
        extent = int(loop.extent)
        if extent <= width:
            return Move(loop, None)
        even = -(-extent // -(-extent // width))
        step = next(step for step in (2 * self._costs.lanes, self._costs.lanes, 1) if width % step == 0)
        return Move(loop, -(-even // step) * step)


def _power_of_two(number: int) -> int:
    """The largest that is not above a positive number."""
    return 1 << (number.bit_length() - 1)


# -- moving -------------------------------------------------------------------------------------------------------


def moved_inside(draft: Draft, move: Move) -> Draft:
    """The draft with an outer loop, or tiles of it, inside every nest."""
    loop = move.loop
    if move.tile is None:
        outer = tuple(item for item in draft.outer if item is not loop)
        return _with_inner(replace(draft, outer=outer), replace(loop, mode="serial"), loop.extent, move.contiguous)
    tile = sympy.Integer(move.tile)
    tiles = KernelLoop(index_symbol(f"{loop.index.name}_tile"), tile_count(loop.extent, tile), "parallel")
    inner = KernelLoop(index_symbol(f"{loop.index.name}_in"), tile_extent(loop.extent, tile, tiles.index))
    values = {loop.index: tile * tiles.index + inner.index}
    ranges = {tiles.index: tiles.extent, inner.index: tile}
    nests = tuple(with_indices(nest, values, ranges) for nest in draft.nests)
    outer = tuple(tiles if item is loop else item for item in draft.outer)
    return _with_inner(replace(draft, outer=outer, nests=nests), inner, tile, move.contiguous)


def tile_count(extent: sympy.Expr, tile: sympy.Expr) -> sympy.Expr:
    """Number of tiles."""
    return FloorDiv(sympy.expand(extent + tile - 1), tile)


def tile_extent(extent: sympy.Expr, tile: sympy.Expr, index: sympy.Symbol) -> sympy.Expr:
    """Values of one tile; the last may be smaller."""
    if extent.is_Integer and extent % tile == 0:
        return tile
    return sympy.Min(tile, extent - tile * index)


def _with_inner(draft: Draft, loop: KernelLoop, width: sympy.Expr, contiguous: bool) -> Draft:
    """Add a loop to every nest and a dimension of ``width`` elements to all scratch."""
    elements = {item.name: item.elements for item in draft.scratch}

    def place(buffer: str, offset: sympy.Expr) -> sympy.Expr:
        if buffer not in elements:
            return offset
        return sympy.expand(offset * width + loop.index if contiguous else loop.index * elements[buffer] + offset)

    def node(item: Expr) -> Expr:
        return replace(item, offset=place(item.buffer, item.offset)) if isinstance(item, Read) else item

    def statement(item: Statement) -> Statement:
        item = rewrite(item, node)
        return replace(item, offset=place(item.buffer, item.offset)) if isinstance(item, Store) else item

    def nest(item: Nest) -> Nest:
        body, finish = tuple(map(statement, item.body)), tuple(map(statement, item.finish))
        return Nest((loop, *item.loops), item.reduced, body, finish)

    scratch = tuple(Scratch(item.name, item.dtype, sympy.expand(item.elements * width)) for item in draft.scratch)
    return replace(draft, nests=tuple(map(nest, draft.nests)), scratch=scratch)
