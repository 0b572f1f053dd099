"""Statistics of the interleaved rounds, the verdict on a placement, and the tables."""

from __future__ import annotations

import io
import itertools
import math
from collections import Counter

import pytest
from rich.console import Console

from mixbackend.benchmarks.one_model.timing import Timing, calls_per_round, round_order, speedup
from mixbackend.benchmarks.speed import THE_MIXTURE, assess, compare_estimates
from mixbackend.benchmarks.tables import (
    print_accuracy,
    print_speed,
    summarise_accuracy,
    summarise_speed,
)


def timing(name: str, *rounds: float, **placement: object) -> Timing:
    return Timing(name, "pass", first_call_s=1.0, rounds_s=rounds, placement=placement)


def three(mixture: float, alone: float, eager: float, nodes: dict[str, int]) -> dict[str, Timing]:
    wiggle = (0.99, 1.0, 1.01, 1.0, 0.995)
    return {
        "eager": timing("eager", *(eager * factor for factor in wiggle)),
        "inductor": timing("inductor", *(0.1 * factor for factor in wiggle)),
        "only onnxruntime": timing("only onnxruntime", *(alone * factor for factor in wiggle)),
        THE_MIXTURE: timing(
            THE_MIXTURE,
            *(mixture * factor for factor in wiggle),
            nodes=nodes,
            estimated_s=0.5,
            single_backend_s={"onnxruntime": 0.7, "eager": 1.5},
        ),
    }


def test_ratios_are_taken_round_by_round() -> None:
    slow, fast = timing("slow", 2.0, 4.0, 8.0), timing("fast", 1.0, 2.0, 4.0)
    ratio = speedup(slow, fast)
    assert ratio is not None
    assert (ratio.low, ratio.median, ratio.high) == (2.0, 2.0, 2.0)
    assert speedup(slow, Timing("x", "crash")) is None
    assert speedup(timing("a", 3.0), timing("b", 1.0)).median == 3.0


def test_spread_is_half_the_quartile_distance_over_the_median() -> None:
    assert timing("x", 1.0, 2.0, 3.0, 4.0, 5.0).spread == pytest.approx(1 / 3)
    assert math.isnan(timing("x", 1.0).spread)
    assert timing("x").to_dict()["median_s"] is None


def test_a_round_has_at_least_one_call_and_at_most_a_hundred() -> None:
    assert calls_per_round(10.0) == 1
    assert calls_per_round(0.0) == 100
    assert calls_per_round(0.01) == 15


@pytest.mark.parametrize(
    ("mixture", "nodes", "outcome"),
    [
        (0.8, {"onnxruntime": 5, "inductor": 5}, "mixture_wins"),
        (1.0, {"onnxruntime": 5, "inductor": 5}, "even"),
        (1.3, {"onnxruntime": 5, "inductor": 5}, "planner_wrong"),
        (1.0, {"onnxruntime": 9, "eager": 1}, "single_rightly_chosen"),
        (1.3, {"onnxruntime": 9, "eager": 1}, "planner_wrong"),
        (0.8, {"onnxruntime": 9, "inductor": 0}, "single_rightly_chosen"),
    ],
)
def test_outcome_of_a_placement(mixture: float, nodes: dict[str, int], outcome: str) -> None:
    verdict = assess(three(mixture, alone=1.0, eager=2.0, nodes=nodes))
    assert verdict["outcome"] == outcome
    assert verdict["best_single"] == "only onnxruntime"


def test_plain_inductor_is_no_rival_but_eager_is() -> None:
    assert assess(three(1.0, alone=3.0, eager=2.0, nodes={"a": 1, "b": 1}))["best_single"] == "eager"


def test_a_failed_mixture_has_no_figures() -> None:
    timings = three(1.0, 1.0, 1.0, {})
    timings[THE_MIXTURE] = Timing(THE_MIXTURE, "crash", "signal SIGSEGV")
    assert assess(timings)["outcome"] == "no_figures"
    assert compare_estimates(timings) == {}


def test_estimates_stand_beside_measurements() -> None:
    compared = compare_estimates(three(0.8, 1.0, 2.0, {"onnxruntime": 1}))
    assert compared == {
        "only onnxruntime": {"estimated_s": 0.7, "measured_s": 1.0},
        "eager": {"estimated_s": 1.5, "measured_s": 2.0},
        THE_MIXTURE: {"estimated_s": 0.5, "measured_s": 0.8},
    }


def record(status: str, phase: str = "inference", aot_eager: str | None = None, **more: object) -> dict:
    reference = None if aot_eager is None else {"status": aot_eager, "detail": ""}
    return {"model": "m", "phase": phase, "status": status, "detail": "[why]", "aot_eager": reference, **more}


def test_summary_counts_only_what_can_be_judged() -> None:
    placement = {"graphs": 2, "nodes": {"eager": 3}, "regions": {"eager": 1}, "events": {"repair": 1}, "optimal": False}
    records = [
        record("pass", first_call_s=1.0, placement=placement),
        record("pass", "training", first_call_s=3.0, placement=placement),
        record("fail_accuracy", aot_eager="pass"),
        record("crash", aot_eager="crash"),
        record("eager_failed"),
    ]
    summary = summarise_accuracy(records)
    assert (summary["cases"], summary["judged"], summary["passed"], summary["pass_rate"]) == (5, 4, 2, 0.5)
    assert summary["failed_as_aot_eager"] == 1
    assert summary["nodes"] == {"eager": 6}
    assert summary["not_optimal"] == 2
    assert summary["first_call_s"] == {"median": 2.0, "total": 4.0}
    assert [failure["status"] for failure in summary["failures"]] == ["fail_accuracy", "crash", "eager_failed"]
    assert summarise_accuracy([])["pass_rate"] is None
    screen = Console(file=io.StringIO(), width=140)
    print_accuracy(records, screen)
    text = screen.file.getvalue()
    assert "50.0%" in text
    assert "fail_accuracy" in text


def test_speed_summary_is_a_geometric_mean() -> None:
    def case(median: float) -> dict:
        timings = three(1.0, 1.0, 2.0, {"a": 1, "b": 1})
        return record(
            "pass",
            peers={name: item.to_dict() for name, item in timings.items()},
            over_eager={THE_MIXTURE: {"median": median}, "inductor": None},
            verdict=assess(timings),
            planner={},
        )

    summary = summarise_speed([case(4.0), case(1.0)])
    assert summary["over_eager"][THE_MIXTURE] == {"geometric_mean": pytest.approx(2.0), "cases": 2}
    assert summary["outcomes"] == {"even": 2}
    screen = Console(file=io.StringIO(), width=160)
    print_speed([case(4.0)], screen)
    assert "4.00x" in screen.file.getvalue()


@pytest.mark.parametrize("peers", ["a", "ab", "abc", "abcdef"])
def test_over_the_rounds_each_peer_is_first_as_often_and_no_neighbour_stays(peers):
    orders = [round_order(peers, turn) for turn in range(2 * len(peers))]
    assert all(sorted(order) == list(peers) for order in orders)
    assert set(Counter(order[0] for order in orders).values()) == {2}
    if len(peers) > 2:
        behind = Counter(pair for order in orders for pair in itertools.pairwise(order))
        assert all(count <= len(peers) for count in behind.values())
    assert round_order("", 3) == []
