"""Products of matrices: which kernels are such, and which tiles they are made in.

Place: asked by ``plan``. Input: a specialised kernel. Output: its ``Product``, and tiles from the cheapest on.
A kernel is a product if one nest folds a ``dot`` with factors that share no outer loop but those of the batch. Outer
loops that the left factor alone depends on are its rows, those of the right one its columns. Everything else is as in
other kernels: offsets of any strides, masks at the border, and what follows the fold.
The model of costs: tiles run in waves over the hardware's units; large ones read memory less often, and keep the units
for products busier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from mixbackend.backends.codegen.ir.kernel import Accumulate, Kernel, KernelLoop, Nest
from mixbackend.backends.codegen.ir.scalar import Apply, Read
from mixbackend.backends.codegen.targets.triton.limits import Settings

LEAST = 16
"""Points along every side of a tile at least: what hardware multiplies at once."""

TOGETHER = 8
"""Rows of tiles that are made one column after the other, so that the second cache holds what they read."""

_ASSUMED = 1024
"""Size of sides that are not known."""


@dataclass(frozen=True)
class Product:
    """See the module's docstring.

    Attributes:
        nest: place of the nest that folds.
        name: of the sum.
        left, right: factors, as they lie in memory.
        rows, columns, batch: outer loops.
    """

    nest: int
    name: str
    left: Read
    right: Read
    rows: tuple[KernelLoop, ...]
    columns: tuple[KernelLoop, ...]
    batch: tuple[KernelLoop, ...]


@dataclass(frozen=True)
class Tile:
    """Points of a block: of the result, and of what is summed up at a time.

    Attributes:
        stages: turns of the sum with loads that are under way at once.
    """

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int


_TILES_OF_16_BITS = (
    Tile(128, 256, 64, 8, 3),
    Tile(256, 128, 64, 8, 3),
    Tile(128, 128, 64, 8, 3),
    Tile(128, 128, 64, 4, 4),
    Tile(128, 64, 64, 4, 4),
    Tile(64, 128, 64, 4, 4),
    Tile(64, 64, 64, 4, 4),
    Tile(64, 32, 64, 4, 5),
    Tile(32, 64, 64, 4, 5),
    Tile(32, 32, 128, 4, 4),
    Tile(16, 64, 128, 4, 4),
    Tile(64, 16, 128, 4, 4),
    Tile(16, 32, 128, 2, 4),
    Tile(16, 16, 128, 2, 4),
)
_TILES_OF_32_BITS = (
    Tile(128, 128, 32, 8, 3),
    Tile(128, 64, 32, 4, 3),
    Tile(64, 128, 32, 4, 3),
    Tile(64, 64, 32, 4, 3),
    Tile(32, 64, 32, 4, 3),
    Tile(64, 32, 32, 4, 3),
    Tile(32, 32, 64, 4, 3),
    Tile(16, 32, 64, 2, 3),
    Tile(32, 16, 64, 2, 3),
    Tile(16, 16, 64, 2, 3),
)


def find_product(kernel: Kernel) -> Product | None:
    """The product that a kernel is; ``None`` if it is none, or one of vectors."""
    folds = [
        (place, item)
        for place, nest in enumerate(kernel.nests)
        for item in nest.body
        if isinstance(item, Accumulate) and item.kind == "dot"
    ]
    if (
        len(folds) != 1
        or any(nest.loops for nest in kernel.nests)
        or any(item.elements != 1 for item in kernel.scratch)
    ):
        return None
    ((place, fold),) = folds
    others = (nest for number, nest in enumerate(kernel.nests) if number != place)
    if kernel.nests[place].body != (fold,) or any(nest.reduced for nest in others):
        return None
    value = fold.value
    factors = value.arguments if isinstance(value, Apply) else ()
    left, right = factors if len(factors) == 2 else (None, None)
    if not isinstance(left, Read) or not isinstance(right, Read):
        return None
    summed = {loop.index for loop in kernel.nests[place].reduced}
    if any(summed.isdisjoint(factor.offset.free_symbols) for factor in (left, right)):
        # An outer product, or a factor that is the same all along the sum: no matrices to hardware.
        return None
    sides: dict[tuple[bool, bool], list[KernelLoop]] = {}
    for loop in kernel.outer:
        uses = (loop.index in left.offset.free_symbols, loop.index in right.offset.free_symbols)
        sides.setdefault(uses, []).append(loop)
    rows, columns = tuple(sides.pop((True, False), ())), tuple(sides.pop((False, True), ()))
    batch = tuple(loop for loop in kernel.outer if loop not in (*rows, *columns))
    return Product(place, fold.names[0], left, right, rows, columns, batch) if rows and columns else None


def as_sums(kernel: Kernel) -> Kernel:
    """The kernel with products of vectors as ordinary sums."""

    def plain(nest: Nest) -> Nest:
        body = (
            replace(item, kind="sum") if isinstance(item, Accumulate) and item.kind == "dot" else item
            for item in nest.body
        )
        return replace(nest, body=tuple(body))

    return replace(kernel, nests=tuple(map(plain, kernel.nests)))


def tiles_of(product: Product, kernel: Kernel, settings: Settings) -> list[Tile]:
    """Tiles that fit a product, the cheapest by the model first."""
    dtype = next(item.dtype for item in kernel.buffers if item.name == product.left.buffer)
    rows, columns, batch = (_size(loops) for loops in (product.rows, product.columns, product.batch))
    inner = _size(kernel.nests[product.nest].reduced)
    found: dict[Tile, float] = {}
    for tile in _TILES_OF_16_BITS if dtype.itemsize == 2 else _TILES_OF_32_BITS:
        fitting = _fitting(tile, rows, columns, inner, dtype, settings)
        if fitting is not None:
            found[fitting] = _cost(fitting, rows, columns, batch, settings)
    return sorted(found, key=lambda tile: found[tile])


def _size(loops: Sequence[KernelLoop]) -> int:
    size = sympy.Mul(*(loop.extent for loop in loops))
    return int(size) if size.is_Integer else _ASSUMED


def _fitting(tile: Tile, rows: int, columns: int, inner: int, dtype: torch.dtype, settings: Settings) -> Tile | None:
    """The tile, cut to what is summed up; ``None`` if most of it would be outside, or memory does not hold it."""
    if tile.rows > 2 * _power(rows) or tile.columns > 2 * _power(columns):
        return None
    tile = replace(tile, inner=min(tile.inner, _power(inner)))
    piece = (tile.rows + tile.columns) * tile.inner * dtype.itemsize
    stages = min(tile.stages, settings.shared // piece)
    return replace(tile, stages=stages) if stages > 1 else None


def _cost(tile: Tile, rows: int, columns: int, batch: int, settings: Settings) -> float:
    """What a product takes, in points of tiles that one unit makes one after the other."""
    tiles = -(-rows // tile.rows) * -(-columns // tile.columns) * max(batch, 1)
    area = tile.rows * tile.columns
    # A unit has room for several small tiles, and is then as busy as with a large one.
    waves = math.ceil(tiles / settings.units)
    return waves * area / _share(area)


def _share(area: int) -> float:
    """Of what the hardware multiplies at best, by the points of a tile."""
    return min(1.0, (area / (128 * 256)) ** 0.3)


def _power(size: int) -> int:
    return max(LEAST, 1 << max(size - 1, 0).bit_length())
