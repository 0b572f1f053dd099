"""Plans: how many points a block has, how it walks its rows, and how many warps share it.

Place: after ``specialised``, before ``printer``. Input: a specialised kernel and what the hardware is like.
Output: a ``Plan``. The model is small, and all of it is here: memory decides. A thread should have 16 to 64 bytes in
flight, neighbours in memory belong to neighbouring threads, and every unit of the hardware gets a block or two.

- Points alone: a flat block along the loop in which stores are contiguous; a square where loads are contiguous along
  another one (a transpose).
- Products of matrices: tiles (``products``).
- Rows that registers hold stay in them (``whole``); others are walked in ``pieces``, where every lane folds for itself
  and the lanes are folded at the end. Columns of a few points are walked point by point (``points``).

``candidates`` gives further plans near the model's, to be measured where that is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import loops_of
from mixbackend.backends.codegen.ir.indices import FloorDiv
from mixbackend.backends.codegen.ir.kernel import Kernel, KernelLoop, Nest
from mixbackend.backends.codegen.schedule.blocks import are_strided
from mixbackend.backends.codegen.schedule.draft import has_carry, nest_accesses
from mixbackend.backends.codegen.targets.triton.limits import LEAST_COLUMNS, RESIDENT, Settings
from mixbackend.backends.codegen.targets.triton.products import Product, Tile, find_product, tiles_of
from mixbackend.backends.codegen.targets.triton.traffic import Traffic, traffic_of, transposed_loops

COLUMNS = 64
FLAT = 1024
SQUARE = 64
ROWS = 1024
"""Points of a block of columns, of flat points, along a side of a transpose, and of short rows together."""

MANY = 6
"""Loads for a point from which on a thread takes fewer points: each of them is in flight at once. What is read for a
channel is not among them: neighbours share it."""

PIECE, COLUMN_PIECE = 4096, 32
"""Points of a row, and of a column, that a block takes at a time; twice as many of 16 bits. Of columns of many tensors
half of that: each of them is under way at once."""

UNDER_WAY = 24576
"""Values that the registers of a unit hold, of all its blocks together: some on their way, others being folded."""

ONCE = 4096
"""Length up to which a row that is read once is taken as a whole."""

STREAMS = 2
"""Tensors up to which registers hold rows of twice the length: little else is in them."""

FEW = 32
"""Length up to which columns are walked point by point."""

ASSUMED = 1024
"""Length of rows of unknown length."""

MOST_TILES = 8
"""Tiles of a product that are measured."""

Way = Literal["whole", "pieces", "points"]


@dataclass(frozen=True)
class Walk:
    """How a nest walks its row: ``block`` points at a time."""

    way: Way
    block: int


@dataclass(frozen=True)
class Side:
    """Outer loops that are one dimension of a block, and its points along it."""

    loops: tuple[KernelLoop, ...]
    block: int

    @property
    def blocks(self) -> sympy.Expr:
        """Number of blocks along it."""
        extent = sympy.Mul(*(loop.extent for loop in self.loops))
        return FloorDiv(extent + self.block - 1, sympy.Integer(self.block))


@dataclass(frozen=True)
class Plan:
    """See the module's docstring.

    Attributes:
        sides: dimensions of a block, the last with neighbours in memory.
        rest: outer loops that a block has one value of.
        walks: of each nest; ``None`` where it has no row.
        warps: of a block.
        wide: whether indices have 64 bits.
        tile: of a product of matrices; the tile's sides are rows and columns of it.
        tf32: whether factors in float32 are rounded to TF32.
    """

    sides: tuple[Side, ...]
    rest: tuple[KernelLoop, ...]
    walks: tuple[Walk | None, ...]
    warps: int
    wide: bool
    tile: Tile | None = None
    tf32: bool = False


def make_plan(kernel: Kernel, settings: Settings, wide: bool) -> Plan:
    """Decide for a kernel.

    Args:
        kernel: as ``specialised`` makes it.
        wide: whether indices have 64 bits.
    """
    product = find_product(kernel)
    if product is not None:
        return _tiled(kernel, product, tiles_of(product, kernel, settings)[0], settings, wide)
    units = settings.units
    rows = [_length(nest) for nest in kernel.nests if loops_of(nest)]
    points = _number(sympy.Mul(*(loop.extent for loop in kernel.outer)))
    if not rows:
        return _pointwise(kernel, points, units, wide)
    strided = are_strided(kernel.outer, kernel.nests)
    in_registers = any(item.elements != 1 for item in kernel.scratch)
    carries = any(map(has_carry, kernel.nests))
    if strided and not in_registers and not carries and all(row is not None and row <= FEW for row in rows):
        return _by_points(kernel, points, units, wide)
    return _by_rows(kernel, rows, points, units, wide, strided, in_registers)


def make_plans_together(kernels: Sequence[Kernel], settings: Settings, wide: Sequence[bool]) -> list[Plan]:
    """Decide for kernels that start at once, either all of points or all of rows: blocks of all have equal warps.

    Args:
        wide: as in ``make_plan``, for each kernel.
    """
    plans = [
        make_plan(kernel, settings, indices) if any(map(loops_of, kernel.nests)) else _beside(kernel, indices)
        for kernel, indices in zip(kernels, wide, strict=True)
    ]
    warps = max(plan.warps for plan in plans)
    return [replace(plan, warps=warps) for plan in plans]


def _beside(kernel: Kernel, wide: bool) -> Plan:
    """A plan of points: those of all kernels together are enough for all units."""
    return replace(_pointwise(kernel, _number(sympy.Mul(*(loop.extent for loop in kernel.outer))), 0, wide), warps=4)


def candidates(kernel: Kernel, settings: Settings, wide: bool) -> list[Plan]:
    """Plans that may be faster than the model's, which comes first."""
    product = find_product(kernel)
    if product is not None:
        tiles = tiles_of(product, kernel, settings)[:MOST_TILES]
        return [_tiled(kernel, product, tile, settings, wide) for tile in tiles]
    first = make_plan(kernel, settings, wide)
    found = [first]
    for factor in (0.5, 2.0):
        side = first.sides[-1]
        block = max(1, int(side.block * factor))
        if side.loops and block <= RESIDENT and first.warps * factor >= 1:
            sides = (*first.sides[:-1], replace(side, block=block))
            found.append(replace(first, sides=sides, warps=min(16, int(first.warps * factor))))
            found.append(replace(first, sides=sides))
    found += [replace(first, warps=warps) for warps in (first.warps // 2, first.warps * 2) if 1 <= warps <= 16]
    walked = {walk.block for walk in first.walks if walk is not None and walk.way == "pieces"}
    for block in walked:
        for other in (block // 2, block * 2):
            walks = tuple(
                replace(walk, block=other) if walk is not None and walk.way == "pieces" else walk
                for walk in first.walks
            )
            found.append(replace(first, walks=walks))
    return list(dict.fromkeys(found))


def _tiled(kernel: Kernel, product: Product, tile: Tile, settings: Settings, wide: bool) -> Plan:
    sides = (Side(product.rows, tile.rows), Side(product.columns, tile.columns))
    tf32 = settings.tf32 and product.left.buffer in {
        item.name for item in kernel.buffers if item.dtype == torch.float32
    }
    return Plan(sides, product.batch, (None,) * len(kernel.nests), tile.warps, wide, tile, tf32)


def _pointwise(kernel: Kernel, points: int | None, units: int, wide: bool) -> Plan:
    walks = (None,) * len(kernel.nests)
    pair = transposed_loops(kernel)
    if pair is not None:
        sides = tuple(Side((loop,), _fitting(SQUARE, _number(loop.extent))) for loop in pair)
        warps = max(1, min(8, math.prod(side.block for side in sides) // 512))
        return Plan(sides, tuple(loop for loop in kernel.outer if loop not in pair), walks, warps, wide)
    outer = {loop.index for loop in kernel.outer}
    accesses = {access for nest in kernel.nests for access in nest_accesses(nest)}
    loads = [
        access for access in accesses if not access.write and (access.dynamic or outer <= access.offset.free_symbols)
    ]
    block = _spread(FLAT if len(loads) <= MANY else FLAT // 4, points, units, least=128)
    points_of_thread = 8 * traffic_of(kernel).packed if len(loads) <= MANY else 2
    return Plan((Side(kernel.outer, block),), (), walks, max(1, block // (32 * points_of_thread)), wide)


def _by_points(kernel: Kernel, points: int | None, units: int, wide: bool) -> Plan:
    block = _spread(256, points, units, least=32)
    walks = tuple(Walk("points", 1) if loops_of(nest) else None for nest in kernel.nests)
    return Plan((Side(kernel.outer, block),), (), walks, max(1, block // 64), wide)


def _by_rows(
    kernel: Kernel,
    rows: list[int | None],
    points: int | None,
    units: int,
    wide: bool,
    strided: bool,
    in_registers: bool,
) -> Plan:
    traffic = traffic_of(kernel)
    longest = max(_power(row) if row is not None else ASSUMED for row in rows)
    few = traffic.streams <= STREAMS and traffic.packed == 1 and not strided
    limit = ONCE * traffic.packed if len(kernel.nests) == 1 else RESIDENT * (2 if few else 1)
    whole = in_registers or (all(rows) and longest * (LEAST_COLUMNS if strided else 1) <= limit)
    if strided:
        return _by_columns(kernel, traffic, longest, whole, points, units, wide)
    length = longest if whole else min(longest, PIECE * traffic.packed)
    block = _spread(max(ROWS * traffic.packed // length, 1), points, units, least=1)
    walks = tuple(_walk(nest, whole, length) for nest in kernel.nests)
    return Plan((_side(kernel, block),), (), walks, _warps(block * length, traffic.packed), wide)


def _by_columns(
    kernel: Kernel, traffic: Traffic, longest: int, whole: bool, points: int | None, units: int, wide: bool
) -> Plan:
    """Neighbouring columns and some of their rows at a time.

    A fold that reads its rows once gains nothing from having them whole. Where a unit could not hold all its blocks
    then, they are walked in pieces: while blocks fold that have the unit for themselves, nothing is under way.
    """
    block = _spread(COLUMNS, points, units, least=LEAST_COLUMNS)
    piece = COLUMN_PIECE * traffic.packed // (1 if traffic.loads <= STREAMS else 2)
    is_once = len(kernel.nests) == 1 and not kernel.scratch and not has_carry(kernel.nests[0])
    blocks = 1 if points is None else -(-points // (block * units))
    if is_once and blocks > 1 and blocks * block * longest * max(traffic.loads, 1) > UNDER_WAY:
        whole = longest <= piece
    length = longest if whole else min(longest, piece)
    while whole and block > 1 and block * length > RESIDENT:
        block //= 2
    area = block * length
    warps = max(4, min(8, area // (256 if whole else 256 * traffic.packed)), _warps(area, traffic.packed))
    walks = tuple(_walk(nest, whole, length) for nest in kernel.nests)
    return Plan((_side(kernel, block),), (), walks, warps, wide)


def _side(kernel: Kernel, block: int) -> Side:
    return Side(kernel.outer, block if kernel.outer else 1)


def _warps(area: int, packed: int) -> int:
    """Warps for a block of rows: 8 points per thread; of 16 bits each 16, and 32 where a warp then has a row alone."""
    each = 256 if packed == 1 else 512 if area > 2 * ROWS else 1024
    return max(1, min(16, area // each))


def _walk(nest: Nest, whole: bool, length: int) -> Walk | None:
    if not loops_of(nest):
        return None
    row = _length(nest)
    return Walk("whole", _power(row)) if whole and row is not None else Walk("pieces", length)


# -- numbers ------------------------------------------------------------------------------------------------------


def _number(size: sympy.Expr) -> int | None:
    """A size that is known."""
    return int(size) if size.is_Integer else None


def _length(nest: Nest) -> int | None:
    return _number(sympy.Mul(*(loop.extent for loop in loops_of(nest))))


def _power(size: int | None) -> int:
    """The next power of two."""
    return 1 << max((size or 1) - 1, 0).bit_length()


def _fitting(block: int, size: int | None) -> int:
    return block if size is None else min(block, _power(size))


def _spread(block: int, points: int | None, units: int, least: int) -> int:
    """A smaller block where there would be too few of them for all units."""
    block = _fitting(block, points)
    while points is not None and block > least and points // block < 2 * units:
        block //= 2
    return block
