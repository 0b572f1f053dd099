"""Split: a long reduction with few results becomes many short ones and a reduction of theirs.

Place: after ``simplify``, before ``grouping``.
Input, output: a ``StageGraph``. Invariants: same outputs up to the order of summation; the partial results are tensors
of their own with the pieces as first dimension, so that the pieces can run in parallel.
Only loops that divide evenly are split: no masks, and it works for symbolic sizes with a constant factor. A whole
reduced loop (a batch dimension, say) may become the pieces; for targets of blocks, which need many, together with parts
of the next one.
Non-goals: positions (``argmax``): their order over several loops is part of the result.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import walk
from mixbackend.backends.codegen.ir.indices import index_symbol
from mixbackend.backends.codegen.ir.scalar import Constant, Expr, IndexValue, Load
from mixbackend.backends.codegen.ir.stages import Loop, Map, Reduce, Stage, StageGraph, TensorType
from mixbackend.backends.codegen.schedule.group import Layout
from mixbackend.backends.codegen.schedule.hints import Hints, estimate, points
from mixbackend.backends.codegen.schedule.rewrite import ranges_of, with_indices
from mixbackend.backends.codegen.targets.target import Blocks

MINIMUM_POINTS = 16384
"""Reductions of fewer points in all are not worth a second pass."""

MINIMUM_PIECE = 64
"""Points of a piece at least."""

COLUMN_PIECE = 32
"""The same of columns that a block of threads keeps together: each point is a line of memory."""

TOGETHER = 512
"""Neighbouring results that one thread keeps together: whole lines of every row it reads."""

_SPLITTABLE = frozenset({"sum", "prod", "max", "min", "any", "all", "welford"})


@dataclass(frozen=True)
class _Cut:
    """How to cut: ``loop`` becomes ``outer`` pieces of ``inner`` values each."""

    loop: Loop
    outer: sympy.Expr
    inner: sympy.Expr


def split_reductions(
    graph: StageGraph, layouts: Mapping[str, Layout], parallel_width: int, hints: Hints, blocks: Blocks | None = None
) -> StageGraph:
    """Split every reduction that would otherwise leave cores idle.

    Args:
        layouts: of the graph's tensors.
        parallel_width: how many independent pieces keep the target busy.
        blocks: of the target: what one block folds at least, and which columns it keeps together.
    """
    ranges = ranges_of(graph.stages)
    symbols = (index_symbol(f"c{number}") for number in itertools.count())
    types = dict(graph.types)
    stages: list[Stage] = []
    for stage in graph.stages:
        cuts = _cuts(stage, layouts, parallel_width, hints, blocks) if isinstance(stage, Reduce) else ()
        if not cuts:
            stages.append(stage)
            continue
        assert isinstance(stage, Reduce)
        made, partial_types = _split(stage, cuts, symbols, ranges)
        stages.extend(made)
        types.update(partial_types)
    return replace(graph, stages=tuple(stages), types=tuple(types.items()))


def _cuts(
    stage: Reduce, layouts: Mapping[str, Layout], parallel_width: int, hints: Hints, blocks: Blocks | None
) -> tuple[_Cut, ...]:
    """Where to cut, nowhere to leave the reduction whole."""
    if stage.kind not in _SPLITTABLE or not stage.reduced:
        return ()
    folded = points((loop.size for loop in stage.reduced), hints)
    kept = points((loop.size for loop in stage.loops), hints)
    width = _neighbours(stage, layouts, hints)
    # The threads of a block share a row; columns have a thread each.
    piece = MINIMUM_PIECE if blocks is None else COLUMN_PIECE if width > 1 else blocks.piece
    if folded * max(kept, 1) < MINIMUM_POINTS or folded < 2 * piece:
        return ()
    wanted = 2 * parallel_width
    together = TOGETHER if blocks is None else blocks.columns
    independent = kept if width == 1 else max(kept // width, 1) * max(width // together, 1)
    # A few blocks of threads keep a processor busy; pieces for single threads also even out the load.
    if independent >= (wanted if blocks is None else parallel_width):
        return ()
    missing = -(-wanted // max(independent, 1))
    cuts: list[_Cut] = []
    for loop in (loop for loop in stage.reduced if estimate(loop.size, hints) > 1):
        size = estimate(loop.size, hints)
        cut = _cut(loop, missing, folded, hints, piece)
        cuts += () if cut is None else (cut,)
        is_whole = cut is not None and cut.inner == 1
        if blocks is None or not is_whole or 2 * size > missing:
            break
        missing, folded = -(-missing // size), folded // size
    return tuple(cuts)


def _neighbours(stage: Reduce, layouts: Mapping[str, Layout], hints: Hints) -> int:
    """Kept points that are neighbours in memory, where vectors and lines have to stay together; 1 if none are."""
    loads = [load for load in _loads(stage.value) if load.tensor in layouts]
    if not loads:
        return 1
    largest = max(loads, key=lambda load: points(layouts[load.tensor].type.sizes, hints))
    pairs = zip(largest.index, layouts[largest.tensor].strides, strict=True)
    neighbours = {symbol for index, stride in pairs if stride == 1 for symbol in index.free_symbols}
    contiguous = [loop for loop in stage.loops if loop.index in neighbours]
    return max(estimate(contiguous[-1].size, hints), 1) if contiguous else 1


def _loads(value: Expr) -> list[Load]:
    return [node for node in walk(value) if isinstance(node, Load)]


def _cut(loop: Loop, wanted: int, folded: int, hints: Hints, piece: int) -> _Cut | None:
    """Cut a loop into about the wanted number of pieces of a decent size."""
    size = estimate(loop.size, hints)
    rest = max(folded // max(size, 1), 1)
    if size <= 2 * wanted and rest >= piece:
        return _Cut(loop, loop.size, sympy.Integer(1))
    factors = _divisors(loop.size)
    usable = [count for count in factors if size // count * rest >= piece and count > 1]
    if not usable:
        return None
    count = min(usable, key=lambda item: (abs(item - wanted) if item < 8 * wanted else size, item))
    return _Cut(loop, sympy.Integer(count), sympy.expand(loop.size / count))


def _divisors(size: sympy.Expr) -> list[int]:
    """Constant divisors of a size."""
    constant = size if size.is_Integer else size.as_coeff_Mul()[0]
    return [int(item) for item in sympy.divisors(int(constant))] if constant.is_Integer else []


def _split(
    stage: Reduce, cuts: Sequence[_Cut], symbols: Iterator[sympy.Symbol], ranges: dict[sympy.Symbol, sympy.Expr]
) -> tuple[list[Stage], dict[str, TensorType]]:
    """The reduction of pieces, and the reduction of their results."""
    outer = tuple(_loop(cut.outer, symbols, ranges) for cut in cuts)
    inner = tuple(_loop(cut.inner, symbols, ranges) for cut in cuts)
    places = {
        cut.loop.index: one.index * cut.inner + other.index for cut, one, other in zip(cuts, outer, inner, strict=True)
    }
    loops = tuple(_loop(loop.size, symbols, ranges) for loop in stage.loops)
    value = with_indices(stage.value, places, ranges)
    value = with_indices(value, {old.index: new.index for old, new in zip(stage.loops, loops, strict=True)}, ranges)
    parts = {cut.loop.index: loop for cut, loop in zip(cuts, inner, strict=True)}
    inside = tuple(parts.get(loop.index, loop) for loop in stage.reduced)
    inside = tuple(loop for loop in inside if loop.size != 1) or inner[-1:]
    gone = {loop.index: sympy.Integer(0) for loop in inner if loop not in inside}
    value = with_indices(value, gone, ranges) if gone else value
    name = next(target for target in stage.targets if target is not None)
    results = 2 if stage.kind == "welford" else 1
    names = tuple(f"{name}.piece{place or ''}" for place in range(results))
    sizes = tuple(loop.size for loop in (*outer, *loops))
    wanted = names if stage.kind != "welford" or stage.targets[1] is not None else (names[0], None)
    partial = Reduce(wanted, (*outer, *loops), inside, stage.kind, value, stage.origins)
    types = {item: TensorType(sizes, value.dtype) for item in wanted if item is not None}
    count = sympy.Mul(*(loop.size for loop in inside))
    return [partial, *_combine(stage, names, outer, count, symbols, ranges, types)], types


def _combine(
    stage: Reduce,
    names: tuple[str, ...],
    outer: Sequence[Loop],
    count: sympy.Expr,
    symbols: Iterator[sympy.Symbol],
    ranges: dict[sympy.Symbol, sympy.Expr],
    types: dict[str, TensorType],
) -> list[Stage]:
    dtype = stage.value.dtype

    def pieces() -> tuple[Loop, ...]:
        return tuple(_loop(loop.size, symbols, ranges) for loop in outer)

    def piece(name: str, again: Sequence[Loop], kept: Sequence[Loop]) -> Load:
        return Load(dtype, name, tuple(loop.index for loop in (*again, *kept)))

    again = pieces()
    if stage.kind != "welford":
        return [replace(stage, reduced=again, value=piece(names[0], again, stage.loops))]
    # Pieces of equal length n: mean = mean of means, m2 = sum of m2 + n * m2 of the means (Chan et al., 1979).
    mean, squares = stage.targets
    between, within = f"{names[1]}.between", f"{names[1]}.within"
    sizes = tuple(loop.size for loop in stage.loops)
    means = replace(stage, targets=(mean, between), reduced=again, value=piece(names[0], again, stage.loops))
    if squares is None:
        return [replace(means, targets=(mean, None))]
    types.update({between: TensorType(sizes, dtype), within: TensorType(sizes, dtype)})
    fresh = [tuple(_loop(loop.size, symbols, ranges) for loop in stage.loops) for _ in range(2)]
    third = pieces()
    sums = Reduce((within,), fresh[0], third, "sum", piece(names[1], third, fresh[0]), stage.origins)
    at = tuple(loop.index for loop in fresh[1])
    scaled = _count(count, dtype) * Load(dtype, between, at)
    total = Map(squares, fresh[1], Load(dtype, within, at) + scaled, stage.origins)
    return [means, sums, total]


def _count(count: sympy.Expr, dtype: torch.dtype) -> Expr:
    return Constant(dtype, float(count)) if count.is_Integer else IndexValue(dtype, count)


def _loop(size: sympy.Expr, symbols: Iterator[sympy.Symbol], ranges: dict[sympy.Symbol, sympy.Expr]) -> Loop:
    index = next(symbols)
    ranges[index] = size
    return Loop(index, size)
