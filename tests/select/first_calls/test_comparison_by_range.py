"""Graphs with symbolic sizes are compared in each range of sizes, and what wins there is for the whole of the range."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from regime_cases import WIDTH, BySize, function, regimes_of
from regime_cases import value_of as rows
from stand_in_backends import settle
from torch import nn

from mixbackend.cost import costs as costs_module
from mixbackend.partitioner.placement import Placements
from mixbackend.plan.choice import DEFAULT
from mixbackend.select import cross_size_check, tuner
from mixbackend.select.decision import MEASURED, Trial

pytestmark = pytest.mark.usefixtures("worth_comparing", "tried_at_once")

LINES = {
    "small": (1e-6, 1e-7),
    "near_small": (1.2e-6, 1.2e-7),
    "large": (1e-4, 1e-9),
    "near_large": (1.2e-4, 1.2e-9),
    "eager": (1e-2, 1e-6),
}
"""Each of those that are near runs in no time; the others, which are estimated to be quicker, sleep."""


@pytest.fixture
def by_lines(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, tuple[float, float]]], None]:
    def use(lines: dict[str, tuple[float, float]]) -> None:
        monkeypatch.setattr(costs_module, "cost_model", lambda *arguments, **keywords: BySize(lines=lines))

    return use


def compiled(mixture: Any, of: Any = function) -> Any:
    torch._dynamo.reset()
    return torch.compile(of, backend=mixture)


def check(run: Any, counts: Sequence[int], of: Any = function) -> None:
    for count in counts:
        value = rows(count)
        torch.testing.assert_close(run(value), of(value))


def check_until_settled(mixture: Any, run: Any, counts: Sequence[int], of: Any = function) -> None:
    """Calls of these sizes, each held against eager, until none of their ranges tries anything any more."""
    settle(mixture, lambda: check(run, counts, of))


def told(mixture: Any) -> list[str]:
    """What was taken in which range of sizes, or in training."""
    details = [event.detail.split(" at the ")[0] for event in mixture.report().events if event.kind == "tuning"]
    return [re.sub(r"(\w+) took the place of .*", r"took \1", text) for text in details if "did not take" not in text]


def owners(mixture: Any, graph: int = 0) -> list[set[str]]:
    return [{region["backend"] for region in regime["regions"]} for regime in regimes_of(mixture, graph)]


def used(mixture: Any) -> list[set[str]]:
    return [{region.backend for region in graph.plan.regions} for graph in mixture.report().graphs]


def four(sleeper: Any) -> list[Any]:
    return [sleeper(name, 0.0 if name.startswith("near") else 0.004) for name in LINES if name != "eager"]


def test_with_one_plan_for_all_sizes_the_first_call_decides(make_mixture: Any, sleeper: Any, by_lines: Any) -> None:
    by_lines(dict.fromkeys(("slow", "quick", "eager"), (1e-6, 1e-8)))
    mixture = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    check_until_settled(mixture, compiled(mixture), (8, 3000, 9))
    assert (told(mixture), used(mixture)) == (["took quick"], [{"quick"}])


def test_each_range_is_compared_at_its_own_first_call(make_mixture: Any, sleeper: Any, by_lines: Any) -> None:
    by_lines(LINES)
    mixture = make_mixture(*four(sleeper))
    run = compiled(mixture)
    check_until_settled(mixture, run, (8, 9))
    assert told(mixture) == ["took near_small"]
    check_until_settled(mixture, run, (3000, 7, 4000))
    assert told(mixture) == ["took near_small", "took near_large"]
    assert owners(mixture) == [{"near_small"}, {"near_large"}]
    assert [regime["tuning"]["chosen"] for regime in regimes_of(mixture)] == ["near_small", "near_large"]


def test_a_later_process_takes_up_what_was_found(
    make_mixture: Any, sleeper: Any, by_lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_lines(LINES)
    monkeypatch.setattr(tuner, "why_untunable", lambda environment: "")
    monkeypatch.setenv("MIXBACKEND_BACKGROUND", "off")
    earlier = make_mixture(*four(sleeper))
    check_until_settled(earlier, compiled(earlier), (8, 3000))
    backends = four(sleeper)
    later = make_mixture(*backends)
    run = compiled(later)
    check(run, (3000, 8))
    assert told(later) == [], "whichever range comes first"
    assert owners(later) == [{"near_small"}, {"near_large"}]
    assert [len(backend.compiled) for backend in backends] == [0, 1, 0, 1]


def test_layers_that_share_a_graph_compare_a_range_once(make_mixture: Any, sleeper: Any, by_lines: Any) -> None:
    by_lines(LINES)
    mixture = make_mixture(*four(sleeper))
    layers = [nn.Linear(WIDTH, WIDTH).eval() for _ in range(3)]
    run = compiled(mixture, lambda layer, value: layer(value).tanh())
    with torch.no_grad():

        def call() -> None:
            for count in (8, 3000, 16):
                for layer in layers:
                    value = rows(count)
                    torch.testing.assert_close(run(layer, value), layer(value).tanh())

        settle(mixture, call)
        call()
    assert owners(mixture) == [{"near_small"}, {"near_large"}]
    assert sorted(told(mixture)) == ["took near_large", "took near_small"]


def test_weights_that_change_afterwards_are_seen_in_every_range(make_mixture: Any, sleeper: Any, by_lines: Any) -> None:
    by_lines(LINES)
    mixture, model = make_mixture(*four(sleeper)), nn.Linear(WIDTH, WIDTH).eval()
    run = compiled(mixture, model)
    with torch.no_grad():

        def call() -> None:
            check(run, (8, 3000), model)
            model.weight.mul_(1.01)

        settle(mixture, call)
    assert owners(mixture) == [{"near_small"}, {"near_large"}]


def test_written_inputs_are_written_once_in_every_range(make_mixture: Any, sleeper: Any, by_lines: Any) -> None:
    by_lines(LINES)
    mixture = make_mixture(*four(sleeper))
    run = compiled(mixture, lambda value: value.add_(1.0).exp())

    def call() -> None:
        for count in (8, 3000):
            mine = rows(count)
            eagers = mine.clone()
            torch.testing.assert_close(run(mine), eagers.add_(1.0).exp())
            torch.testing.assert_close(mine, eagers)

    settle(mixture, call)


@pytest.mark.parametrize(("per_element_s", "winner"), [(1e-9, "second"), (1e-7, "first")])
def test_who_promises_to_be_slower_at_other_sizes_does_not_win(
    make_mixture: Any, sleeper: Any, by_lines: Any, monkeypatch: pytest.MonkeyPatch, per_element_s: float, winner: str
) -> None:
    """At 64 times as many rows, the second is estimated to take three times what it takes here, or the same."""
    by_lines({"first": (1e-4, 1e-9), "second": (1.02e-4, per_element_s), "eager": (1e-2, 1e-6)})
    monkeypatch.setattr("mixbackend.plan.regime_search.WORTH", 10.0)
    mixture = make_mixture(sleeper("first", 0.006), sleeper("second", 0.004))
    check_until_settled(mixture, compiled(mixture), (8,))
    assert used(mixture) == [{winner}]
    (graph,) = mixture.report().to_dict()["graphs"]
    (second, *_) = [item for item in graph["selection"]["happened"] if item["challenger"] == "second"]
    assert ("seconds at other sizes" in second["detail"]) is (winner == "first")


@pytest.mark.parametrize(("took_s", "is_asked"), [(0.8, True), (1.0, True), (1.005, True), (2.0, False)])
def test_who_may_win_as_the_equal_of_the_plan_is_asked_about_other_sizes(
    monkeypatch: pytest.MonkeyPatch, took_s: float, is_asked: bool
) -> None:
    """Among equals one backend alone wins, so a tie here must not hide what it takes elsewhere."""
    monkeypatch.setattr(cross_size_check, "with_hints", lambda graph, hints: graph)
    estimates = {"home": 1.0, "rival": 10.0}
    planner: Any = SimpleNamespace(reprice=lambda graph, plans: SimpleNamespace(seconds=(estimates[graph],)))

    def placed(name: str) -> Any:
        return SimpleNamespace(graph=name, plan=SimpleNamespace(estimated_s=1.0))

    home, rival = (Trial(DEFAULT, 1.0, MEASURED, rounds_s=(seconds,)) for seconds in (1.0, took_s))
    checked = cross_size_check.checked_across_sizes(placed("rival"), rival, placed("home"), home, [{}], planner)
    assert (checked.status == cross_size_check.SLOWER_ELSEWHERE) is is_asked and bool(checked.detail) is is_asked


def test_forward_and_backward_are_tried_in_every_range(make_mixture: Any, sleeper: Any, by_lines: Any) -> None:
    by_lines(LINES)
    mixture = make_mixture(*four(sleeper))
    run = compiled(mixture, lambda value: function(value).sum())

    def steps() -> None:
        for count in (8, 3000):
            mine = rows(count).requires_grad_()
            eagers = mine.detach().clone().requires_grad_()
            run(mine).backward()
            function(eagers).sum().backward()
            torch.testing.assert_close(mine.grad, eagers.grad)

    settle(mixture, steps)
    for graph in range(2):
        assert [owned <= {"near_small", "near_large"} for owned in owners(mixture, graph)] == [True, True]


def test_ranges_that_are_too_small_keep_the_estimates(
    make_mixture: Any, sleeper: Any, by_lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_lines(LINES)
    monkeypatch.setattr("mixbackend.select.live.processor_challengers.LEAST_S", 2e-4)
    mixture = make_mixture(*four(sleeper))
    check_until_settled(mixture, compiled(mixture), (8, 3000))
    assert told(mixture) == ["took near_large"]


def test_no_graph_is_placed_for_a_comparison_that_is_switched_off(
    make_mixture: Any, sleeper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans, plan = [], Placements.plan
    monkeypatch.setattr(Placements, "plan", lambda *given, **named: plans.append(1) or plan(*given, **named))
    mixture = make_mixture(sleeper("slow", 0.001), sleeper("quick", 0.0), select="off")
    check(compiled(mixture), (8,))
    assert (len(plans), told(mixture)) == (1, [])
