"""Split points: at which factors loops have to be split so that indices need no division.

Place: the analysis of ``split_loops``.
Input: a ``StageGraph``. Output: for each loop, the strides of its digits.
A loop of 2048 values with the split point 32 has two digits: ``i`` becomes ``32 * i0 + i1``. Points of one loop divide
each other. What asks for a point:
- ``FloorDiv(i, 32)`` or ``Modulo(i, 32)`` in any index: the loop ``i``;
- a read at ``32 * i + j`` with ``j < 32``: the dimension that is read, and so the loop that defines it;
- a point of a dimension: the loops that read it, and the other way round: a loop's point, the dimensions it reads.
Invariants: a dimension is split only if every read of it stays free of divisions (or had them before), but for what a
packed product sums over: a layer norm over pixels side by side is made in pieces, and summed up as a whole.
Non-goals: sizes that cannot be shown to be divisible.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import sympy

from mixbackend.backends.codegen.ir.grammar import index_expressions_of, loops_of, walk
from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo, Ranges, substitute, unflatten
from mixbackend.backends.codegen.ir.scalar import Load
from mixbackend.backends.codegen.ir.stages import (
    Concatenate,
    Scan,
    Scatter,
    Stage,
    StageGraph,
    Template,
    target_loops_of,
    targets_of,
)
from mixbackend.backends.codegen.ir.templates import is_packed_product
from mixbackend.backends.codegen.schedule.rewrite import ranges_of

Points = tuple[sympy.Expr, ...]


@dataclass(frozen=True)
class _Access:
    """One read of a dimension that a stage defines: where it is read, and the loop that defines it."""

    index: sympy.Expr
    definer: sympy.Symbol


@dataclass(frozen=True)
class _Loops:
    """What the analysis knows of a graph.

    Attributes:
        ranges: size of each loop.
        same: the loop that stands for each loop: an update loop of a scatter is split as its target's is.
        fixed: loops that cannot be split.
        accesses: every read of a dimension that a stage defines.
        divided: dividend and divisor of every division.
    """

    ranges: Ranges
    same: Mapping[sympy.Symbol, sympy.Symbol]
    fixed: frozenset[sympy.Symbol]
    accesses: tuple[_Access, ...]
    divided: tuple[tuple[sympy.Expr, sympy.Expr], ...]


def split_points(graph: StageGraph, whole: Collection[sympy.Symbol] = ()) -> dict[sympy.Symbol, Points]:
    """Split points of every loop that has some, smallest first.

    Args:
        whole: loops that stay as they are.
    """
    loops = _survey(graph)
    fixed = loops.fixed | {loops.same[symbol] for symbol in whole}
    while True:
        points = _Search(loops, fixed).run()
        harmed = {access.definer for access in loops.accesses if _adds_division(access, points, loops)}
        if not harmed:
            return points
        fixed = fixed | {loops.same[loop] for loop in harmed}


def digits(size: sympy.Expr, points: Points) -> tuple[sympy.Expr, ...]:
    """Sizes of the loops that replace one, outermost first."""
    strides = (sympy.Integer(1), *points, size)
    return tuple(quotient(high, low) for low, high in itertools.pairwise(strides))[::-1]


def quotient(number: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
    """The exact quotient of two sizes that ``divides`` accepted."""
    return sympy.expand(number / divisor)


def divides(divisor: sympy.Expr, number: sympy.Expr) -> bool:
    """Whether a size is certainly a multiple of another."""
    if divisor.is_Integer and number.is_Integer:
        return int(divisor) > 0 and int(number) % int(divisor) == 0
    ratio = sympy.expand(number / divisor)
    return bool(ratio.is_integer) and bool(ratio.is_positive) and bool(sympy.denom(sympy.together(ratio)) == 1)


def recomposed(loop: sympy.Symbol, points: Points, new: tuple[sympy.Symbol, ...]) -> sympy.Expr:
    """The old index as a sum over its digits."""
    strides = (*reversed(points), sympy.Integer(1))
    return sympy.Add(*(symbol * stride for symbol, stride in zip(new, strides, strict=True)))


def digit_symbols(loop: sympy.Symbol, points: Points) -> tuple[sympy.Symbol, ...]:
    """Names of the loops that replace one."""
    return tuple(
        sympy.Symbol(f"{loop.name}_{place}", integer=True, nonnegative=True) for place in range(len(points) + 1)
    )


# -- what there is ----------------------------------------------------------------------------------------------------


def _survey(graph: StageGraph) -> _Loops:
    ranges = ranges_of(graph.stages)
    same = {symbol: symbol for symbol in ranges}
    fixed: set[sympy.Symbol] = set()
    definer: dict[str, tuple[sympy.Symbol, ...]] = {}
    accesses: dict[_Access, None] = {}
    divided: dict[tuple[sympy.Expr, sympy.Expr], None] = {}
    for stage in graph.stages:
        fixed |= _fixed_loops(stage, same)
        for index, tensor, dimension in _indices(stage):
            for node in index.atoms(FloorDiv, Modulo) if not index.is_Atom else ():
                divided[node.args] = None
            if tensor in definer and not _is_summed(stage, index):
                accesses[_Access(index, definer[tensor][dimension])] = None
        if isinstance(stage, Template):
            # Its targets stay as they are: their loops are not asked for.
            continue
        kept = tuple(loop.index for loop in target_loops_of(stage))
        definer.update((name, kept) for name in targets_of(stage))
    fixed = {same[symbol] for symbol in fixed}
    return _Loops(ranges, same, frozenset(fixed), tuple(accesses), tuple(divided))


def _is_summed(stage: Stage, index: sympy.Expr) -> bool:
    """Whether a packed product sums over an index of its left matrix: its pieces lie one behind the other there."""
    left = stage.operands[0] if is_packed_product(stage) else None
    return left is not None and index == left.loops[-1].index


def _indices(stage: Stage) -> Iterator[tuple[sympy.Expr, str | None, int]]:
    """Every index expression of a stage, with the tensor and dimension that is read there, if one is."""
    for node in walk(stage):
        tensor = node.tensor if isinstance(node, Load) else None
        yield from ((part, tensor, place) for place, part in enumerate(index_expressions_of(node)))
    if isinstance(stage, Scatter):
        yield from ((part, None, 0) for part in stage.destination)


def _fixed_loops(stage: Stage, same: dict[sympy.Symbol, sympy.Symbol]) -> set[sympy.Symbol]:
    """Loops of a stage that must stay whole; ties the update loops of a scatter to the dimensions they write."""
    if isinstance(stage, (Scan, Concatenate)):
        return {stage.loops[stage.axis].index}
    if isinstance(stage, Template):
        return {loop.index for loop in loops_of(stage)}
    if not isinstance(stage, Scatter):
        return set()
    fixed = set()
    updates = {loop.index: loop.size for loop in stage.loops}
    for place, loop in zip(stage.destination, stage.target_loops, strict=True):
        if updates.get(place) != loop.size or same[place] != place:
            fixed.add(loop.index)
            continue
        same[place] = loop.index
    return fixed


# -- the search -------------------------------------------------------------------------------------------------------


class _Search:
    """Spreads split points from where they are needed until nothing is added."""

    def __init__(self, loops: _Loops, fixed: frozenset[sympy.Symbol]) -> None:
        self._loops = loops
        self._fixed = fixed
        self._points: dict[sympy.Symbol, list[sympy.Expr]] = defaultdict(list)
        self._pending: deque[tuple[sympy.Symbol, sympy.Expr]] = deque()
        self._reads: dict[sympy.Symbol, list[_Access]] = defaultdict(list)
        self._readers: dict[sympy.Symbol, list[_Access]] = defaultdict(list)

    def run(self) -> dict[sympy.Symbol, Points]:
        for dividend, divisor in self._loops.divided:
            self._ask_terms(dividend, divisor)
        for access in self._loops.accesses:
            strides = _mixed_radix(access.index, self._loops.ranges, self._loops.ranges[access.definer])
            for stride in strides.values():
                self._ask(access.definer, stride)
            self._readers[self._loops.same[access.definer]].append(access)
            for symbol in strides:
                self._reads[self._loops.same[symbol]].append(access)
        while self._pending:
            self._spread(*self._pending.popleft())
        chosen = {symbol: self._points.get(kind) for symbol, kind in self._loops.same.items()}
        return {symbol: tuple(points) for symbol, points in chosen.items() if points}

    def _spread(self, loop: sympy.Symbol, point: sympy.Expr) -> None:
        for access in self._readers[loop]:
            self._ask_terms(access.index, point)
        for access in self._reads[loop]:
            for symbol, stride in _terms(access.index, self._loops.ranges):
                if self._loops.same[symbol] == loop:
                    self._ask(access.definer, sympy.expand(stride * point))

    def _ask_terms(self, index: sympy.Expr, divisor: sympy.Expr) -> None:
        """Split the loops of an index so that dividing it by ``divisor`` leaves no division."""
        for symbol, stride in _terms(index, self._loops.ranges):
            if divides(stride, divisor):
                self._ask(symbol, quotient(divisor, stride))

    def _ask(self, symbol: sympy.Symbol, point: sympy.Expr) -> None:
        loop, size = self._loops.same[symbol], self._loops.ranges[symbol]
        points = self._points[loop]
        if loop in self._fixed or point in (1, size) or size == 0 or point in points or not divides(point, size):
            return
        below = [other for other in points if divides(other, point)]
        above = [other for other in points if divides(point, other)]
        if len(below) + len(above) < len(points):
            return
        points.insert(len(below), point)
        self._pending.append((loop, point))


def _terms(index: sympy.Expr, ranges: Ranges) -> list[tuple[sympy.Symbol, sympy.Expr]]:
    """Loops that an index is a sum of, with their strides; what is not linear is left out."""
    found = []
    for term in sympy.Add.make_args(index):
        if term in ranges:
            found.append((term, sympy.Integer(1)))
            continue
        symbols = [symbol for symbol in term.free_symbols if symbol in ranges]
        if len(symbols) == 1 and term.is_Mul and symbols[0] in term.args:
            found.append((symbols[0], term / symbols[0]))
    return sorted(found, key=lambda pair: pair[0].name)


def _mixed_radix(index: sympy.Expr, ranges: Ranges, size: sympy.Expr) -> dict[sympy.Symbol, sympy.Expr]:
    """Stride of each loop, if the index runs through every position below ``size`` once; empty if it does not."""
    if index in ranges:
        return {index: sympy.Integer(1)} if ranges[index] == size else {}
    terms = _terms(index, ranges)
    if len(terms) != len(sympy.Add.make_args(index)):
        return {}
    by_stride = {stride: symbol for symbol, stride in terms}
    found: dict[sympy.Symbol, sympy.Expr] = {}
    reached = sympy.Integer(1)
    while reached in by_stride:
        symbol = by_stride.pop(reached)
        found[symbol] = reached
        reached = sympy.expand(reached * ranges[symbol])
    return found if not by_stride and len(found) == len(terms) and reached == size else {}


def _adds_division(access: _Access, points: Mapping[sympy.Symbol, Points], loops: _Loops) -> bool:
    """Whether splitting the dimension puts a division into an index that has none."""
    chosen = points.get(access.definer)
    if chosen is None or access.index.has(FloorDiv, Modulo):
        return False
    values, ranges = {}, dict(loops.ranges)
    for symbol in access.index.free_symbols & points.keys():
        new = digit_symbols(symbol, points[symbol])
        values[symbol] = recomposed(symbol, points[symbol], new)
        ranges.update(zip(new, digits(ranges[symbol], points[symbol]), strict=True))
    index = substitute(access.index, values, ranges)
    parts = unflatten(index, digits(loops.ranges[access.definer], chosen), ranges)
    return any(part.has(FloorDiv, Modulo) for part in parts)
