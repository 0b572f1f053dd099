"""D1: "too little work" is said of the seconds asked about; the same ops beside other regions are judged anew."""

from __future__ import annotations

import pytest
from partitioner_cases import MATMUL, POINTWISE, TableBackend, TableCosts, eager, graph, node

from mixbackend.contracts import Backend, RegionConditions, RegionSketch, Unsupported
from mixbackend.partitioner.conditions import RegionRules
from mixbackend.partitioner.placement import make_problem
from mixbackend.partitioner.problem import Problem
from mixbackend.partitioner.step_clock import StepClock

CHAIN = graph([node("a", MATMUL, "x0", "w0"), node("b", POINTWISE, "a")], ["b"])
COSTS = TableCosts(0, {"busy": 0.0, "eager": 0.0})


class Busy(TableBackend):
    """Wants regions of a second, by its conditions or by word, and names the price that it is told."""

    def decline(self, sketch: RegionSketch) -> Unsupported | None:
        return None if sketch.estimated_s >= 1.0 else Unsupported("declined", "too little")

    def region_cost(self, sketch: RegionSketch) -> float | None:
        return sketch.estimated_s * 2.0


def problem(backends: list[Backend]) -> Problem:
    return make_problem(CHAIN, backends, COSTS, [], frozenset(), {}, StepClock())


@pytest.mark.parametrize(
    "busy", [TableBackend("busy", wanted=RegionConditions(minimum_seconds=1.0)), Busy("busy")], ids=["stated", "asked"]
)
@pytest.mark.parametrize("order", [(0.5, 2.0, 0.5), (2.0, 0.5, 2.0)], ids=["little first", "much first"])
def test_each_amount_of_work_has_its_answer(busy: TableBackend, order: tuple[float, ...]) -> None:
    backends = [busy, eager()]
    rules = RegionRules(problem(backends), backends, {})
    for seconds in order:
        assert (rules.refusal(0, [0, 1], seconds) is None) == (seconds >= 1.0)


def test_each_amount_of_work_has_its_price() -> None:
    backends = [Busy("busy"), eager()]
    rules = RegionRules(problem(backends), backends, {})
    assert [rules.price(0, [0, 1], seconds) for seconds in (0.5, 2.0, 0.5)] == [1.0, 4.0, 1.0]
