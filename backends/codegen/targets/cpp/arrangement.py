"""How the loops of a nest run: their order, what the lanes of a vector count, how many vectors at a time.

Place: decided before a nest is printed. Input: a nest. Output: an ``Arrangement``.
Invariants: the results are the same in any arrangement, up to rounding. A nest runs point by point if its stores cannot
be made by vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import index_expressions_of, walk
from mixbackend.backends.codegen.ir.kernel import Accumulate, Carry, KernelLoop, Nest, Statement, Store
from mixbackend.backends.codegen.ir.scalar import Expr, Local, Read, cost_of
from mixbackend.backends.codegen.targets.cpp.accumulators import needs_blocks
from mixbackend.backends.codegen.targets.cpp.indices import LARGEST_LANES, lane_step
from mixbackend.backends.codegen.targets.cpp.memory import Memory

SHORT_COLUMN = 32
"""Rows that are folded at once."""
BLOCK_STEPS = 256
"""Additions to one register before it is added to a total."""
CHEAP_COST, MODERATE_COST = 8.0, 24.0
"""Cycles per vector below which four or two vectors at a time hide what one waits for."""


@dataclass(frozen=True)
class Block:
    """After how many iterations of which reduced loop partial results are added to totals."""

    index: sympy.Symbol
    iterations: int


@dataclass(frozen=True)
class Turn:
    """Reads that lanes walk in steps, but that are contiguous along ``loop``, the one around the vector loop."""

    loop: KernelLoop
    reads: tuple[Read, ...]


@dataclass(frozen=True)
class Arrangement:
    """See the module's docstring.

    Attributes:
        loops: in the order they are printed.
        vector: index that lanes count, if any.
        across: whether it is reduced.
        copies: vectors at a time.
        block: see ``Block``.
        turn: see ``Turn``.
        panels: whether columns are folded a few rows at a time.
        running: whether lanes count an ordered loop, so that running results are folded along the lanes.
    """

    loops: tuple[KernelLoop, ...]
    vector: sympy.Symbol | None
    across: bool
    copies: int
    block: Block | None
    turn: Turn | None = None
    panels: bool = False
    running: bool = False


def arrange(nest: Nest, memory: Memory) -> Arrangement:
    """Decide."""
    vector = _usable_vector(nest)
    ordered = _contiguous_order(nest, vector)
    if ordered is not None:
        loops = (*(loop for loop in nest.loops if loop is not ordered), ordered)
        running = _folds_in_any_order(nest)
        return Arrangement(loops, ordered.index if running else None, False, 1, None, running=running)
    across = vector is not None and any(loop.index == vector for loop in nest.reduced)
    copies = 1
    if vector is not None and (nest.reduced or _has_carry(nest)):
        cost = _cost(nest.body)
        copies = 4 if cost <= CHEAP_COST else 2 if cost <= MODERATE_COST else 1
    block = None
    if any(isinstance(item, Accumulate) and needs_blocks(item) for item in nest.body):
        block = _block(nest.reduced, vector, copies)
    turn = _turn(nest, vector, memory)
    loops = _in_order(nest, vector, turn)
    panels = vector is not None and not across and loops[-1].index == vector and _pays_in_panels(nest)
    return Arrangement(loops, vector, across, copies, block, turn, panels)


def _in_order(nest: Nest, vector: sympy.Symbol | None, turn: Turn | None) -> tuple[KernelLoop, ...]:
    """The vector loop comes last: what it repeats is short. A running result stays in registers inside it."""
    last = [] if turn is None else [turn.loop]
    last += [loop for loop in nest.loops if loop.index == vector]
    carried = [loop for loop in nest.loops if loop.mode == "ordered" and _has_carry(nest)]
    return (*(loop for loop in nest.loops if loop not in last and loop not in carried), *last, *carried)


def _contiguous_order(nest: Nest, vector: sympy.Symbol | None) -> KernelLoop | None:
    """The ordered loop, where memory is contiguous along it, but not along the vector loop."""
    carries = [item for item in nest.body if isinstance(item, Carry)]
    # Sums of exponentials are worth gathering lanes from different rows.
    if not carries or nest.reduced or any(item.kind == "logsumexp" for item in carries):
        return None
    (ordered,) = (loop for loop in nest.loops if loop.mode == "ordered")
    touched = [node for node in walk(*nest.body) if isinstance(node, Read)]
    stores = [item for item in nest.body if isinstance(item, Store)]
    accesses: tuple[Read | Store, ...] = (*touched, *stores)
    bound = any(item.bindings for item in accesses)
    if bound or not all(_can_store(item, ordered.index) for item in stores):
        return None
    offsets = [item.offset for item in accesses]
    if any(lane_step(offset, ordered.index) not in (0, 1) for offset in offsets):
        return None
    short = ordered.extent.is_Integer and ordered.extent < LARGEST_LANES // 2
    is_even = vector is not None and all(lane_step(offset, vector) in (0, 1) for offset in offsets)
    return None if short or is_even or any(loop.extent.has(ordered.index) for loop in nest.loops) else ordered


def _folds_in_any_order(nest: Nest) -> bool:
    """Whether pieces can be folded before they meet: a product of some factors may overflow where no other does."""
    carries = [item for item in nest.body if isinstance(item, Carry)]
    return not any(item.kind == "prod" and item.value.dtype.is_floating_point for item in carries)


def _turn(nest: Nest, vector: sympy.Symbol | None, memory: Memory) -> Turn | None:
    """The loop along which most reads are contiguous that lanes would gather one by one."""
    if vector is None or nest.reduced or _has_carry(nest):
        return None
    reads = [node for node in walk(*nest.body) if isinstance(node, Read) and _can_turn(node, vector, memory)]
    best: Turn | None = None
    for loop in nest.loops:
        if loop.mode != "serial" or any(other.extent.has(loop.index) for other in nest.loops):
            continue
        along = tuple(node for node in reads if lane_step(node.offset, loop.index) == 1)
        if len(along) > (0 if best is None else len(best.reads)):
            best = Turn(loop, along)
    return best


def _can_turn(node: Read, vector: sympy.Symbol, memory: Memory) -> bool:
    step = lane_step(node.offset, vector)
    plain = node.mask is None and not node.bindings and node.buffer not in memory.stored
    return plain and step is not None and step not in (0, 1) and node.dtype != torch.bool


def _pays_in_panels(nest: Nest) -> bool:
    """Whether there may be many rows, and results can be kept in memory."""
    folds = [item for item in nest.body if isinstance(item, Accumulate)]
    kinds = ("sum", "prod", "max", "min")
    if not nest.reduced or any(item.kind not in kinds or item.value.dtype == torch.bool for item in folds):
        return False
    if any(isinstance(item, Store) for item in nest.body) or nest.reduced[-1].mode == "unrolled":
        return False
    rows = [largest_value(loop.extent) for loop in nest.reduced]
    return any(count is None for count in rows) or math.prod(count or 0 for count in rows) > SHORT_COLUMN


def _block(reduced: tuple[KernelLoop, ...], vector: sympy.Symbol | None, copies: int) -> Block | None:
    steps_left = BLOCK_STEPS
    for loop in reversed(reduced):
        width = LARGEST_LANES * copies if loop.index == vector else 1
        most = largest_value(loop.extent)
        steps = None if most is None else -(-most // width)
        if steps is None or steps > steps_left:
            return Block(loop.index, steps_left)
        steps_left = max(steps_left // max(steps, 1), 1)
    return None


def largest_value(extent: sympy.Expr) -> int | None:
    """A number that an extent never exceeds, ``None`` if none is seen: 3 of ``Min(3, n) - Max(0, i)``."""
    if extent.is_Integer:
        return int(extent)
    if extent.is_nonpositive:
        return 0
    parts = [largest_value(part) for part in extent.args] if extent.func in (sympy.Min, sympy.Max, sympy.Add) else []
    known = [part for part in parts if part is not None]
    if not known or (extent.func is not sympy.Min and len(known) < len(parts)):
        return None
    if extent.func is sympy.Add:
        return sum(known)
    return min(known) if extent.func is sympy.Min else max(known)


def _usable_vector(nest: Nest) -> sympy.Symbol | None:
    loops = (*nest.loops, *nest.reduced)
    vectors = [loop.index for loop in loops if loop.mode == "vector"]
    if not vectors:
        return None
    (vector,) = vectors
    across = any(loop.index == vector for loop in nest.reduced)
    stores = [item for item in (*nest.body, *(() if across else nest.finish)) if isinstance(item, Store)]
    if any(loop.extent.has(vector) for loop in loops) or not all(_can_store(item, vector) for item in stores):
        return None
    return vector


def _can_store(store: Store, vector: sympy.Symbol) -> bool:
    """Whether the lanes of a vector never meet at one element, so that they can store at once."""
    if store.atomic:
        return False
    varying = {symbol for symbol, value in store.bindings if _may_vary(value, vector)}
    step = None if store.offset.free_symbols & varying else lane_step(store.offset, vector)
    return store.mode == "set" if step is None else step != 0


def _may_vary(value: Expr, vector: sympy.Symbol) -> bool:
    return any(
        isinstance(node, Local) or any(part.has(vector) for part in index_expressions_of(node)) for node in walk(value)
    )


def _has_carry(nest: Nest) -> bool:
    return any(isinstance(item, Carry) for item in (*nest.body, *nest.finish))


def _cost(statements: Iterable[Statement]) -> float:
    statements = tuple(statements)
    folds = sum(_FOLD_COSTS.get(item.kind, 1.0) if isinstance(item, Accumulate) else 1.0 for item in statements)
    return folds + cost_of(*statements) + sum(1.0 for node in walk(*statements) if isinstance(node, Read))


_FOLD_COSTS: Mapping[str, float] = {"welford": 6.0, "argmax": 6.0, "argmin": 6.0}
