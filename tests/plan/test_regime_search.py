"""Which sizes get which plan, on plans whose costs are lines: switch points, bounds, counts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import draws

from mixbackend.contracts import (
    GraphInput,
    InputRole,
    NodeRef,
    OpGraph,
    OpNode,
    Plan,
    PlannedRegion,
    SymbolicSize,
    TensorMeta,
)
from mixbackend.contracts.rehint import symbols_of
from mixbackend.partitioner.reprice import Repriced
from mixbackend.plan.regime_search import MOST_REGIMES, WORTH, Ladder, find_ladder

ROWS = sympy.Symbol("s0", positive=True, integer=True)
COLUMNS = sympy.Symbol("s1", positive=True, integer=True)

Lines = Mapping[str, tuple[float, float]]
"""Seconds of a call and seconds per element, by name of a backend."""


def graph(*sizes: SymbolicSize) -> OpGraph:
    meta = TensorMeta(sizes, (1,) * len(sizes), torch.float32, torch.device("cpu"))
    value = GraphInput("value", meta, InputRole.ACTIVATION)
    return OpGraph(
        "g",
        "inference",
        (value,),
        (OpNode("relu", "aten.relu.default", (("self", NodeRef("value")),), (meta,)),),
        ("relu",),
    )


def rows(hint: int, lower: int = 2, upper: int | None = None) -> SymbolicSize:
    return SymbolicSize(ROWS, hint, lower, upper)


class Market:
    """Places on the cheapest line, and counts how often it was asked."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.placed = 0
        self.priced = 0

    def seconds(self, name: str, size: int) -> float:
        base, slope = self.lines[name]
        return base + slope * size

    def best(self, size: int) -> str:
        return min(self.lines, key=lambda name: (self.seconds(name, size), name))

    def place(self, described: OpGraph) -> Plan:
        self.placed += 1
        size = elements(described)
        name = self.best(size)
        region = PlannedRegion("r0", name, ("relu",))
        return Plan("g", "inference", True, (region,), estimated_s=self.seconds(name, size))

    def price(self, described: OpGraph, plans: object, bounded: bool) -> Repriced:
        self.priced += 1
        size = elements(described)
        names = [plan.regions[0].backend for plan in plans]  # type: ignore[attr-defined]
        return Repriced(tuple(self.seconds(name, size) for name in names), self.seconds(self.best(size), size))

    def ladder(self, described: OpGraph) -> Ladder | None:
        plan = self.place(described)
        self.placed = 0
        return find_ladder(described, plan, lambda symbol: True, self.place, self.price)


def elements(described: OpGraph) -> int:
    return math.prod(size.hint or 1 for size in symbols_of(described).values())


def names_of(ladder: Ladder) -> list[str]:
    return [regime.plan.regions[0].backend for regime in ladder.regimes]


def at(ladder: Ladder, size: int) -> str:
    last = [regime for regime in ladder.regimes if regime.first <= size]
    return last[-1].plan.regions[0].backend


@pytest.mark.parametrize(("first_call", "home"), [(64, 0), (5000, 1)])
def test_two_lines_meet_where_the_switch_is(first_call: int, home: int) -> None:
    market = Market({"small": (1e-6, 1e-7), "large": (1e-4, 1e-9)})
    ladder = market.ladder(graph(rows(first_call)))
    assert ladder is not None
    assert names_of(ladder) == ["small", "large"]
    assert ladder.home == home
    meeting = (1e-4 - 1e-6) / (1e-7 - 1e-9)
    assert meeting <= ladder.regimes[1].first <= 1.1 * meeting + 1
    assert (ladder.regimes[0].first, ladder.regimes[1].last) == (0, None)
    assert ladder.regimes[0].last == ladder.regimes[1].first - 1


def test_three_lines_give_three_regimes() -> None:
    market = Market({"small": (1e-6, 1e-7), "middle": (3e-5, 3e-8), "large": (2e-4, 1e-9)})
    ladder = market.ladder(graph(rows(100)))
    assert ladder is not None
    assert names_of(ladder) == ["small", "middle", "large"]


@pytest.mark.parametrize("slope", [1e-9, 1.03e-9])
def test_plans_within_the_tolerance_are_one(slope: float) -> None:
    market = Market({"one": (1e-6, 1e-9), "other": (0.99e-6, slope)})
    ladder = market.ladder(graph(rows(1000)))
    assert ladder is not None
    assert [regime.unbounded for regime in ladder.regimes] == [True]
    assert market.placed == 0, "what no plan can undercut is known without placing"


def test_ranges_are_respected() -> None:
    market = Market({"small": (1e-6, 1e-7), "large": (1e-4, 1e-9)})
    for described in (graph(rows(64, 2, 512)), graph(rows(5000, 2000))):
        ladder = market.ladder(described)
        assert ladder is not None
        assert len(ladder.regimes) == 1, "the switch is at about a thousand"


def test_the_ends_of_a_regime_are_within_its_bounds() -> None:
    market = Market({"small": (1e-6, 1e-7), "large": (1e-4, 1e-9)})
    ladder = market.ladder(graph(rows(256)))
    assert ladder is not None
    low, high = ladder.regimes
    assert [dict(hints) for hints in ladder.ends(low)] == [{ROWS: 4}, {ROWS: low.last}]
    first = {ROWS: high.first}
    assert [dict(hints) for hints in ladder.ends(high)] == [first, {ROWS: 64 * high.size}]
    alone = market.ladder(graph(rows(64, 64, 64)))
    assert alone is not None
    assert alone.ends(alone.regimes[0]) == ({ROWS: 64}, {ROWS: 64}), "no other sizes are possible"


def test_a_static_graph_has_one_plan() -> None:
    meta = TensorMeta((8,), (1,), torch.float32, torch.device("cpu"))
    static = OpGraph("g", "inference", (GraphInput("value", meta, InputRole.ACTIVATION),), (), ("value",))
    market = Market({"small": (1e-6, 1e-7), "large": (1e-4, 1e-9)})
    assert (
        find_ladder(static, Plan("g", "inference", False, ()), lambda symbol: True, market.place, market.price) is None
    )


def test_symbols_that_cannot_be_read_do_not_count() -> None:
    market = Market({"small": (1e-6, 1e-7), "large": (1e-4, 1e-9)})
    described = graph(rows(64))
    assert find_ladder(described, market.place(described), lambda symbol: False, market.place, market.price) is None


def test_symbols_that_matter_alike_are_multiplied() -> None:
    market = Market({"small": (1e-6, 1e-7), "large": (1e-4, 1e-9)})
    ladder = market.ladder(graph(rows(8), SymbolicSize(COLUMNS, 16, 2)))
    assert ladder is not None
    assert set(ladder.quantity.symbols) == {ROWS, COLUMNS}
    meeting = (1e-4 - 1e-6) / (1e-7 - 1e-9)
    assert meeting <= ladder.regimes[1].first <= 1.2 * meeting


def test_a_symbol_that_hardly_matters_is_left_out() -> None:
    class Uneven(Market):
        def price(self, described: OpGraph, plans: object, bounded: bool) -> Repriced:
            hints = {symbol: size.hint or 1 for symbol, size in symbols_of(described).items()}
            size = hints[ROWS] + hints[COLUMNS] // 100
            names = [plan.regions[0].backend for plan in plans]  # type: ignore[attr-defined]
            return Repriced(tuple(self.seconds(name, size) for name in names), 0.0)

    market = Uneven({"small": (1e-6, 1e-7), "large": (1e-4, 1e-9)})
    described = graph(rows(64), SymbolicSize(COLUMNS, 64, 2))
    region = PlannedRegion("r0", "small", ("relu",))
    plan = Plan("g", "inference", True, (region,), estimated_s=market.seconds("small", 64))
    ladder = find_ladder(described, plan, lambda symbol: True, market.place, market.price)
    assert ladder is not None
    assert ladder.quantity.symbols == (ROWS,)


def test_a_mixture_must_be_cheaper_than_a_single_backend_by_the_margin() -> None:
    class Singles(Market):
        def place(self, described: OpGraph) -> Plan:
            plan = super().place(described)
            alone = (("small", self.seconds("small", elements(described))),)
            return replace(plan, single_backend_s=alone)

    market = Singles({"small": (0.0, 1e-7), "mixture": (1e-5, 0.9e-7)})
    ladder = market.ladder(graph(rows(64)))
    assert ladder is not None
    bound = 1e-5 * 1.04 / (1e-7 - 1.04 * 0.9e-7)
    assert bound <= ladder.regimes[1].first <= 1.1 * bound


LINES = st.lists(st.tuples(st.floats(1e-7, 1e-3), st.floats(1e-10, 1e-6)), min_size=1, max_size=6).map(
    lambda rows: {f"b{number}": line for number, line in enumerate(rows)}
)


@settings(deadline=None, max_examples=draws(70, 200))
@given(lines=LINES, hint=st.integers(2, 4000))
def test_any_lines(lines: Lines, hint: int) -> None:
    """Few regimes, found with few placements, that cover all sizes; none much dearer than the first plan's."""
    market = Market(lines)
    described = graph(rows(hint))
    first = market.place(described).regions[0].backend
    ladder = market.ladder(described)
    assert market.placed <= 4
    assert market.priced <= 40
    assert ladder is not None
    if len(ladder.regimes) == 1:
        for size in (max(2, round(hint / 256)), hint * 256):
            assert market.seconds(first, size) <= (1.0 + WORTH) * market.seconds(market.best(size), size) * 1.0001
        return
    assert len(ladder.regimes) <= MOST_REGIMES
    bounds = [(regime.first, regime.last) for regime in ladder.regimes]
    assert bounds[0][0] == 0
    assert bounds[-1][1] is None
    for (_, last), (beginning, _) in itertools.pairwise(bounds):
        assert last is not None
        assert beginning == last + 1
    assert at(ladder, hint) == first
    for power in range(-8, 9):
        size = max(2, round(hint * 2.0**power))
        mine = market.seconds(at(ladder, size), size)
        assert mine <= 1.11 * market.seconds(first, size)
