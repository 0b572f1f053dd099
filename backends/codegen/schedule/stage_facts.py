"""Facts about stages: what grouping has to know of each, computed once, in plain numbers.

Place: first step of ``grouping``.
Input: a stage and the layouts of all tensors. Output: ``StageFacts``; sizes are estimates.
Invariants: a loop is among ``kept`` only if different values of it never write the same element and no state is
carried along it: such loops can be outer loops of a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import loops_of, walk
from mixbackend.backends.codegen.ir.scalar import Load, cost_of
from mixbackend.backends.codegen.ir.stages import (
    Concatenate,
    Loop,
    Scan,
    Scatter,
    Stage,
    Template,
    target_loops_of,
    targets_of,
)
from mixbackend.backends.codegen.schedule.group import Layout
from mixbackend.backends.codegen.schedule.hints import Hints, estimate, points
from mixbackend.backends.codegen.schedule.rewrite import renamed

IndexLoops = tuple[sympy.Symbol | None, ...]
"""For each dimension of a tensor the loop that is its index; ``None`` where the index is anything else."""


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One read or write of a tensor by a stage.

    Attributes:
        tensor: which.
        loops: see ``IndexLoops``.
        strides: distance in memory, in elements, between neighbouring values of each loop.
        size: bytes that are touched.
        item_bytes: of one element.
    """

    tensor: str
    loops: IndexLoops
    strides: Mapping[sympy.Symbol, int]
    size: int
    item_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class StageFacts:
    """See the module's docstring.

    Attributes:
        number: place among the stages of the graph.
        stage: with the loops of a scatter's target named as the update loops that write it, where one does alone.
        kept: loops that can be outer, with the dimension of the target that each is the index of.
        sizes: of the kept loops.
        extents: estimated size of every loop.
        accesses: reads, then one write per target.
        reads: for each tensor, the distinct indices it is read at.
        targets: tensors it defines.
        work: cycles of its arithmetic.
        last: loops by how many bytes are contiguous along them, best first.
    """

    number: int
    stage: Stage
    kept: Mapping[sympy.Symbol, int]
    sizes: Mapping[sympy.Symbol, sympy.Expr]
    extents: Mapping[sympy.Symbol, int]
    accesses: tuple[Access, ...]
    reads: Mapping[str, tuple[IndexLoops, ...]]
    targets: tuple[str, ...]
    work: float
    last: tuple[sympy.Symbol, ...]


def gather_facts(number: int, stage: Stage, layouts: Mapping[str, Layout], hints: Hints) -> StageFacts:
    """Facts about the ``number``-th stage of a graph."""
    kept = _kept_loops(stage, layouts)
    if isinstance(stage, Scatter):
        stage = renamed(stage, {stage.target_loops[place].index: loop.index for loop, place in kept})
    extents = {loop.index: estimate(loop.size, hints) for loop in loops_of(stage)}
    loads = [node for node in walk(stage) if isinstance(node, Load)]
    read = [_access(load, extents, layouts[load.tensor], hints) for load in loads]
    stores = [Load(torch.float32, name, index) for name, index in _written(stage)]
    accesses = (*read, *(_access(store, extents, layouts[store.tensor], hints) for store in stores))
    places: dict[str, dict[IndexLoops, None]] = {}
    for access in read:
        places.setdefault(access.tensor, {})[access.loops] = None
    return StageFacts(
        number=number,
        stage=stage,
        kept={loop.index: place for loop, place in kept},
        sizes={loop.index: loop.size for loop, _ in kept},
        extents=extents,
        accesses=accesses,
        reads={name: tuple(indices) for name, indices in places.items()},
        targets=targets_of(stage),
        work=_work(stage, extents),
        last=_contiguous_loops(accesses, extents),
    )


def _work(stage: Stage, extents: Mapping[sympy.Symbol, int]) -> float:
    """Cycles of all points together, one at a time; a template is a kernel whatever it costs."""
    if isinstance(stage, Template):
        return 0.0
    return (cost_of(stage) + 1.0) * math.prod(extents.values())


def _written(stage: Stage) -> list[tuple[str, tuple[sympy.Expr, ...]]]:
    """Every target with the index at which it is written."""
    if isinstance(stage, Template):
        return [(result.target, result.index) for result in stage.results if result.target is not None]
    return [(name, tuple(loop.index for loop in target_loops_of(stage))) for name in targets_of(stage)]


def _kept_loops(stage: Stage, layouts: Mapping[str, Layout]) -> list[tuple[Loop, int]]:
    """Loops that can be outer and the dimensions they are the index of."""
    if isinstance(stage, Template):
        return []
    if isinstance(stage, Scatter):
        candidates = _rows_of_scatter(stage)
    else:
        whole = stage.axis if isinstance(stage, (Scan, Concatenate)) else None
        candidates = [(loop, place) for place, loop in enumerate(stage.loops) if place != whole]
    strides = [layouts[name].strides for name in targets_of(stage)]
    # Along a stride of 0 all values share one element, which only one outer point may write.
    return [(loop, place) for loop, place in candidates if loop.size != 1 and all(item[place] != 0 for item in strides)]


def _rows_of_scatter(stage: Scatter) -> list[tuple[Loop, int]]:
    """Update loops that alone are the index of a whole dimension of the target."""
    updates = {loop.index: loop for loop in stage.loops}
    found: dict[sympy.Symbol, tuple[Loop, int]] = {}
    for place, (index, target_loop) in enumerate(zip(stage.destination, stage.target_loops, strict=True)):
        loop = updates.get(index)
        if loop is not None and loop.size == target_loop.size:
            found.setdefault(loop.index, (loop, place))
    return list(found.values())


def _access(load: Load, extents: Mapping[sympy.Symbol, int], layout: Layout, hints: Hints) -> Access:
    strides: dict[sympy.Symbol, int] = {}
    loops: list[sympy.Symbol | None] = []
    for part, stride in zip(load.index, layout.strides, strict=True):
        step = estimate(stride, hints)
        loops.append(part if part in extents else None)
        for symbol, factor in _linear(part, extents):
            strides[symbol] = strides.get(symbol, 0) + factor * step
    if load.bindings:
        # Run-time integers jump with every loop that the index does not name.
        strides = {**dict.fromkeys(extents, _JUMP), **strides}
    touched = min(points(layout.type.sizes, hints), math.prod(extents.values()))
    item_bytes = layout.type.dtype.itemsize
    return Access(load.tensor, tuple(loops), strides, touched * item_bytes, item_bytes)


_JUMP = 1 << 10
"""Assumed stride where it is not constant."""


def _linear(index: sympy.Expr, extents: Mapping[sympy.Symbol, int]) -> Iterator[tuple[sympy.Symbol, int]]:
    """Loops in an index with what one step changes it by."""
    if index in extents:
        yield index, 1
        return
    for symbol in sorted(index.free_symbols & extents.keys(), key=lambda item: item.name):
        factor = index.coeff(symbol)
        is_linear = symbol not in (index - factor * symbol).free_symbols
        yield symbol, abs(int(factor)) if is_linear and factor.is_Integer else _JUMP


def _contiguous_loops(accesses: tuple[Access, ...], extents: Mapping[sympy.Symbol, int]) -> tuple[sympy.Symbol, ...]:
    weight = {symbol: sum(access.size for access in accesses if access.strides.get(symbol) == 1) for symbol in extents}
    order = list(extents)
    # Of equally contiguous loops the longer ones, then the inner ones, make the better vectors.
    return tuple(sorted(order, key=lambda symbol: (-weight[symbol], -extents[symbol], -order.index(symbol))))
