"""The search for regimes: ranges of sizes in which different plans of one graph are cheapest.

Place: after the first plan of a graph with symbolic sizes, before anything is compiled for other sizes.
Input: the graph, its plan at the sizes of the first call, and ways to place and to price it. Output: ``Ladder``: which
quantity of a call decides, and the regimes in ascending order.
The quantity: the product of the symbols that matter. One symbol alone matters. Of several, a symbol matters if
doubling it alone adds at least half as many seconds as doubling the one that adds most. They are taken to grow
together.
The search: the graph is placed at both ends of a wide range. Where the first plan is nearly as cheap there, it is the
one regime. Between two plans, the size from which the second is cheaper is found by bisection, which only prices;
the graph is placed once more at that size, in case a third plan is cheaper there.
Invariants: deterministic; at most ``MOST_REGIMES``; a further plan promises to save ``WORTH`` somewhere; at most four
placements, and a bounded number of pricings. Correctness never depends on this: every plan is legal for all sizes.
Non-goals: plans that are cheapest only inside a range, where its ends and switch points have others.
Units: seconds.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import sympy

from mixbackend.contracts import OpGraph, Plan, SymbolicSize
from mixbackend.contracts.rehint import Hints, ImpossibleSizesError, symbols_of, with_hints

if TYPE_CHECKING:
    from mixbackend.partitioner.reprice import Repriced

MOST_REGIMES = 4
WORTH = 0.04
"""A further plan must promise to save this share: estimates are no better, and it costs compilation and memory."""
MOST_NODES = 5000
"""Larger graphs keep one plan: placing them takes seconds already."""
_REACHES = (256, 64, 16, 4)
"""The ends of the range, as multiples of the size of the first call; the next where one is impossible."""
_FAR = 64
"""What is to be good for a whole regime is held against sizes so many times smaller and larger than its own."""
_RESOLUTION, _LARGEST = 1.1, 2**48
_MOST_SYMBOLS = 8
_GROWS = 0.5


def _steps() -> Iterator[int]:
    size = 1
    while size < _LARGEST:
        yield size
        size = max(size + 1, round(_RESOLUTION * size))


_STEPS = tuple(_steps())
"""Sizes that bounds may lie at: the same wherever the first call was, so that decisions for a range are found again."""

Place = Callable[[OpGraph], Plan]
Price = Callable[[OpGraph, Sequence[Plan], bool], "Repriced"]


@dataclass(frozen=True)
class Quantity:
    """What of a call decides.

    Attributes:
        symbols: their product is the quantity.
        sizes: hint and range of each.
    """

    symbols: tuple[sympy.Symbol, ...]
    sizes: tuple[SymbolicSize, ...]

    @property
    def hint(self) -> int:
        """Its value in the first call."""
        return math.prod(size.hint or 1 for size in self.sizes)

    def near(self, value: int) -> dict[sympy.Symbol, int]:
        """Values of the symbols with a product of about ``value``, inside their ranges: all grow by one factor."""
        factor = (value / self.hint) ** (1.0 / len(self.symbols))
        return {symbol: _clamped(size, factor) for symbol, size in zip(self.symbols, self.sizes, strict=True)}

    def __str__(self) -> str:
        return "*".join(map(str, self.symbols))


def _clamped(size: SymbolicSize, factor: float) -> int:
    value = max(round((size.hint or 1) * factor), size.lower, 1)
    return value if size.upper is None else min(value, size.upper)


@dataclass(frozen=True)
class Regime:
    """One range of sizes and its plan.

    Attributes:
        first, last: inclusive bounds of the quantity; ``last`` is ``None`` without end.
        size: the quantity's value that it was planned at, or nearly.
        hints: of the symbols there.
        graph: described at them.
        plan: of the graph.
    """

    first: int
    last: int | None
    size: int
    hints: Hints
    graph: OpGraph
    plan: Plan

    @property
    def unbounded(self) -> bool:
        """Whether it is the only one."""
        return self.first == 0 and self.last is None

    def __str__(self) -> str:
        return f"{self.first}..{'' if self.last is None else self.last}"


@dataclass(frozen=True)
class Ladder:
    """The regimes of one graph, ascending; they cover all sizes. ``home`` is the place of the first call's."""

    quantity: Quantity
    regimes: tuple[Regime, ...]
    home: int

    def ends(self, regime: Regime) -> tuple[Hints, ...]:
        """Values of the symbols near both ends of a regime, where they are others than it was planned for."""
        smallest, largest = max(regime.first, regime.size // _FAR, 1), regime.size * _FAR
        values = smallest, largest if regime.last is None else min(largest, regime.last)
        return tuple(self.quantity.near(value) for value in values if value != regime.size)


def find_ladder(
    graph: OpGraph, plan: Plan, readable: Callable[[sympy.Symbol], bool], place: Place, price: Price
) -> Ladder | None:
    """The regimes of a graph, one where its plan is good for all sizes; ``None`` if no number of a call could decide.

    Args:
        graph: at the sizes of the first call.
        plan: of the graph.
        readable: whether a symbol's value can be read off the inputs of a call.
        place: the best plan for a graph.
        price: what plans cost on a graph, and on demand what no plan can undercut.
    """
    if not graph.dynamic or len(graph.nodes) > MOST_NODES:
        return None
    quantity = _quantity(graph, plan, readable, price)
    if quantity is None:
        return None
    return _Search(graph, plan, quantity, place, price).ladder()


def _quantity(graph: OpGraph, plan: Plan, readable: Callable[[sympy.Symbol], bool], price: Price) -> Quantity | None:
    """The symbols that matter, see the module's docstring."""
    known = {symbol: size for symbol, size in symbols_of(graph).items() if size.hint and readable(symbol)}
    if len(known) > 1:
        considered = dict(list(known.items())[:_MOST_SYMBOLS])
        added = {symbol: _added(graph, plan, symbol, size, price) for symbol, size in considered.items()}
        most = max(added.values())
        known = {symbol: known[symbol] for symbol, seconds in added.items() if seconds >= _GROWS * most > 0.0}
    return Quantity(tuple(known), tuple(known.values())) if known else None


def _added(graph: OpGraph, plan: Plan, symbol: sympy.Symbol, size: SymbolicSize, price: Price) -> float:
    """Seconds that twice a symbol's size adds (half of it takes away, where twice is impossible)."""
    assert size.hint is not None
    base = plan.estimated_s
    for hint, sign in ((2 * size.hint, 1.0), (size.hint // 2, -1.0)):
        (seconds,) = _priced(graph, {symbol: hint}, [plan], price)
        if seconds is not None:
            return max(0.0, sign * (seconds - base))
    return 0.0


def _priced(graph: OpGraph, hints: Hints, plans: Sequence[Plan], price: Price) -> tuple[float | None, ...]:
    try:
        return price(with_hints(graph, hints), plans, False).seconds
    except ImpossibleSizesError:
        return (None,) * len(plans)


@dataclass(frozen=True)
class _Anchor:
    """A plan, and a size at which it is the cheapest."""

    size: int
    hints: Hints
    graph: OpGraph
    plan: Plan

    def of(self, plan: Plan) -> _Anchor:
        """The same sizes with another plan."""
        return replace(self, plan=plan)


class _Search:
    """See the module's docstring; one instance per graph."""

    def __init__(self, graph: OpGraph, plan: Plan, quantity: Quantity, place: Place, price: Price) -> None:
        self._graph = graph
        self._quantity = quantity
        self._place = place
        self._price = price
        hints = {symbol: size.hint or 1 for symbol, size in zip(quantity.symbols, quantity.sizes, strict=True)}
        self._home = _Anchor(quantity.hint, hints, graph, plan)

    def ladder(self) -> Ladder:
        """Ends, switch points, and what is cheaper at those."""
        ends = (self._end(-1), self._end(+1))
        anchors = [item for item in (ends[0], self._home, ends[1]) if item is not None]
        switches = [self._switch(*pair) for pair in itertools.pairwise(anchors)]
        return self._assembled(*self._with_middles(anchors, switches))

    def _end(self, direction: int) -> _Anchor | None:
        """The plan at one end of the range, where it is worth having."""
        end = self._extreme(direction)
        if end is None:
            return None
        appraisal = self._price(end.graph, [self._home.plan], True)
        (seconds,) = appraisal.seconds
        if seconds is None or not _worth(seconds, appraisal.bound_s):
            return None
        plan = self._place(end.graph)
        return end.of(plan) if _worth(seconds, plan.estimated_s) else None

    def _extreme(self, direction: int) -> _Anchor | None:
        """The farthest sizes that are possible, with the first plan."""
        for reach in _REACHES:
            try:
                end = self._at(max(1, round(self._home.size * float(reach) ** direction)), self._home.plan)
            except ImpossibleSizesError:
                continue
            return end if (end.size - self._home.size) * direction > 0 else None
        return None

    def _at(self, value: int, plan: Plan) -> _Anchor:
        """The graph at about this value of the quantity."""
        hints = self._quantity.near(value)
        return _Anchor(math.prod(hints.values()), hints, with_hints(self._graph, hints), plan)

    def _switch(self, low: _Anchor, high: _Anchor) -> _Anchor:
        """Where the plan of the larger size gets cheaper, as an anchor of that plan."""
        below, above = low, high
        sizes = _STEPS[bisect_right(_STEPS, low.size) : bisect_left(_STEPS, high.size)]
        while sizes:
            place = len(sizes) // 2
            middle = self._between(below, sizes[place], above)
            if middle is None:
                break
            first, second = self._price(middle.graph, [low.plan, high.plan], False).seconds
            if first is None or second is None:
                break
            if second * _caution(high.plan) < first * _caution(low.plan):
                above, sizes = middle.of(high.plan), sizes[:place]
            else:
                below, sizes = middle.of(low.plan), sizes[place + 1 :]
        return above

    def _between(self, below: _Anchor, size: int, above: _Anchor) -> _Anchor | None:
        try:
            middle = self._at(size, above.plan)
        except ImpossibleSizesError:
            return None
        # The hints come as near to the size as whole numbers can.
        return replace(middle, size=size) if below.size < middle.size < above.size else None

    def _with_middles(
        self, anchors: Sequence[_Anchor], switches: Sequence[_Anchor]
    ) -> tuple[list[_Anchor], list[_Anchor]]:
        """A third plan where one is cheaper than both at the size where they meet."""
        found, bounds = [anchors[0]], list[_Anchor]()
        for place, switch in enumerate(switches):
            low, high = anchors[place], anchors[place + 1]
            room = len(found) + len(anchors) - place - 1 < MOST_REGIMES
            middle = self._third(low, switch, high) if room else None
            if middle is not None:
                found.append(middle)
                bounds.append(self._switch(low, middle))
            bounds.append(switch if middle is None else self._switch(middle, high))
            found.append(high)
        return found, bounds

    def _third(self, low: _Anchor, switch: _Anchor, high: _Anchor) -> _Anchor | None:
        if not low.size < switch.size < high.size:
            return None
        plan = self._place(switch.graph)
        seconds = self._price(switch.graph, [low.plan, high.plan], False).seconds
        known = [value for value in seconds if value is not None]
        return switch.of(plan) if len(known) == 2 and _worth(min(known), plan.estimated_s) else None

    def _assembled(self, anchors: Sequence[_Anchor], switches: Sequence[_Anchor]) -> Ladder:
        firsts = [0, *(switch.size for switch in switches)]
        lasts = [*(switch.size - 1 for switch in switches), None]
        regimes = tuple(
            Regime(first, last, anchor.size, anchor.hints, anchor.graph, anchor.plan)
            for first, last, anchor in zip(firsts, lasts, anchors, strict=True)
        )
        return Ladder(self._quantity, regimes, [anchor is self._home for anchor in anchors].index(True))


def _caution(plan: Plan) -> float:
    """Mixtures must be cheaper than single backends by the same margin as where a graph is placed once."""
    singles = (seconds for _, seconds in plan.single_backend_s)
    return 1.0 if any(math.isclose(seconds, plan.estimated_s) for seconds in singles) else 1.0 + WORTH


def _worth(seconds: float, other: float) -> bool:
    """Whether ``other`` seconds are worth another plan."""
    return seconds > (1.0 + WORTH) * other
