"""Ladders as plain data: what JSON holds.

Place: between ``plan.regime_search`` and the code that carries a ladder to another process. Input: a ladder.
Output: mappings, lists, numbers; and back, for an equal graph that may have been captured at other sizes.
Form: symbols by their place in ``symbols_of``, plans canonical.
Invariants: what is read covers all sizes without gaps, and each plan holds for its graph. Which regime is at home
follows from the sizes that the graph was captured at here.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

from mixbackend.contracts import OpGraph, Plan
from mixbackend.contracts.rehint import symbols_of, with_hints
from mixbackend.partitioner.plan_canonical import canonical_plan
from mixbackend.partitioner.plan_data import plan_from_data, plan_to_data
from mixbackend.plan.regime_search import MOST_REGIMES, Ladder, Quantity, Regime


def ladder_to_data(ladder: Ladder) -> dict[str, Any]:
    """A ladder as plain data."""
    places = {symbol: place for place, symbol in enumerate(symbols_of(ladder.regimes[0].graph))}
    return {
        "symbols": [places[symbol] for symbol in ladder.quantity.symbols],
        "regimes": [
            {
                "first": regime.first,
                "last": regime.last,
                "size": regime.size,
                "hints": [[places[symbol], value] for symbol, value in regime.hints.items()],
                "plan": plan_to_data(canonical_plan(regime.plan, regime.graph)),
            }
            for regime in ladder.regimes
        ],
    }


def ladder_from_data(data: Mapping[str, Any], graph: OpGraph, held: Callable[[OpGraph, Plan], Plan]) -> Ladder:
    """The ladder of a graph that plain data describes.

    Args:
        data: of an equal graph.
        graph: as it was captured here.
        held: gives a canonical plan the names of a graph, or says what speaks against it.

    Raises:
        ValueError: the data is not that of a ladder, or of another graph.
        PlacementError: a plan does not hold.
    """
    known = list(symbols_of(graph).items())
    try:
        symbols, sizes = zip(*(known[_count(place)] for place in data["symbols"]), strict=True)
        told = list(data["regimes"])
        bounds = [(_count(item["first"]), item["last"]) for item in told]
        hints = [{known[_count(place)][0]: _count(value) for place, value in item["hints"]} for item in told]
        values = [_count(item["size"]) for item in told]
        plans = [plan_from_data(item["plan"]) for item in told]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"no ladder of this graph: {error!r}") from error
    lasts = [_count(last) for _, last in bounds[:-1]]
    gaps = [last + 1 != first for last, (first, _) in zip(lasts, bounds[1:], strict=True)]
    falling = [first > last for first, last in itertools.pairwise([0, *lasts])]
    if len(told) > MOST_REGIMES or bounds[0][0] != 0 or bounds[-1][1] is not None or any((*gaps, *falling)):
        raise ValueError(f"regimes {bounds} do not cover all sizes once")
    graphs = [with_hints(graph, item) for item in hints]
    regimes = tuple(
        Regime(first, last, value, item, described, held(described, plan))
        for (first, last), value, item, described, plan in zip(bounds, values, hints, graphs, plans, strict=True)
    )
    quantity = Quantity(symbols, sizes)
    return Ladder(quantity, regimes, bisect_left(lasts, quantity.hint))


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no place and no size")
    return value
