"""Plans by estimates are held against single backends at the first call: who wins, what is kept, who is left alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mixbackend.contracts import Plan, PlannedRegion, Traits
from mixbackend.cost.costs import SessionCosts
from mixbackend.partitioner import plan_revalidation
from mixbackend.partitioner.placement import Placements
from mixbackend.plan.choice import Choice
from mixbackend.select import comparison_processor, tuner
from mixbackend.select.comparison import simplest_first
from mixbackend.select.comparison_processor import ProcessorHarness
from mixbackend.select.decision import Trial
from mixbackend.select.rivals import EVERYONE, alone, other_plans

pytestmark = pytest.mark.usefixtures("worth_comparing")


def model(x: torch.Tensor) -> torch.Tensor:
    return (x.exp() + 1.0).relu()


X = torch.randn(8, 8)


def run(mixture: Any, function: Any = model, value: torch.Tensor = X) -> torch.Tensor:
    with torch.no_grad():
        return torch.compile(function, backend=mixture, dynamic=False)(value)


def used(mixture: Any) -> list[set[str]]:
    return [{region.backend for region in graph.plan.regions} for graph in mixture.report().graphs]


def told(mixture: Any) -> list[str]:
    return [event.detail for event in mixture.report().events if event.kind == "tuning"]


def test_the_quicker_single_backend_takes_over_and_is_remembered(make_mixture, sleeper, monkeypatch):
    monkeypatch.setattr(tuner, "why_untunable", lambda environment: "")
    mixture = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    torch.testing.assert_close(run(mixture), model(X))
    assert used(mixture) == [{"quick"}]
    (detail,) = told(mixture)
    assert detail.startswith("took quick at the first call")
    (graph,) = mixture.report().to_dict()["graphs"]
    assert [trial["choice"] for trial in graph["tuning"]["trials"]] == ["quick", "mixture"]
    assert graph["tuning"]["chosen"] == "quick"

    torch._dynamo.reset()
    slow, quick = sleeper("slow", 0.01), sleeper("quick", 0.0)
    later, searches = make_mixture(slow, quick), []
    monkeypatch.setattr(Placements, "plan", lambda *_, **__: searches.append("searched"))
    torch.testing.assert_close(run(later), model(X))
    assert used(later) == [{"quick"}]
    assert (len(slow.compiled), told(later), searches) == (0, [], [])
    (graph,) = later.report().to_dict()["graphs"]
    assert graph["tuning"]["chosen"] == "quick"


def test_a_remembered_plan_that_does_not_hold_is_searched_again(make_mixture, sleeper, monkeypatch):
    monkeypatch.setattr(tuner, "why_untunable", lambda environment: "")
    assert used_after(make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))) == [{"quick"}]
    torch._dynamo.reset()
    later = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    monkeypatch.setattr(plan_revalidation, "find_problems", lambda *_: ["it is another graph"])
    assert used_after(later) == [{"quick"}]
    assert "does not hold: it is another graph" in told(later)[0]


def used_after(mixture: Any) -> list[set[str]]:
    torch.testing.assert_close(run(mixture), model(X))
    return used(mixture)


def test_the_plan_by_estimates_stays_where_it_is_the_quickest(make_mixture, sleeper):
    mixture = make_mixture(sleeper("quick", 0.0), sleeper("slow", 0.01))
    torch.testing.assert_close(run(mixture), model(X))
    assert used(mixture) == [{"quick"}]
    assert told(mixture)[0].startswith("took mixture at the first call")


def test_weights_that_change_afterwards_are_seen(make_mixture, sleeper):
    linear = torch.nn.Linear(8, 8)
    mixture = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    with torch.no_grad():
        compiled = torch.compile(linear, backend=mixture, dynamic=False)
        torch.testing.assert_close(compiled(X), linear(X))
        linear.weight.mul_(2.0)
        torch.testing.assert_close(compiled(X), linear(X))
    assert used(mixture) == [{"quick"}]


def test_layers_that_share_a_graph_take_what_the_first_one_showed(make_mixture, sleeper):
    layers = [torch.nn.Linear(8, 8) for _ in range(3)]
    mixture = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    with torch.no_grad():
        compiled = torch.compile(lambda layer, x: layer(x), backend=mixture, dynamic=False)
        for layer in layers:
            torch.testing.assert_close(compiled(layer, X), layer(X))
    (executable,) = mixture._graphs
    assert len(executable.rows) == len(used(mixture)) == 3
    assert used(mixture) == [{"quick"}] * 3
    assert len(told(mixture)) == 1, "compared once"


def test_a_rival_that_fails_costs_nothing_but_its_time(make_mixture, sleeper):
    mixture = make_mixture(sleeper("good", 0.001), sleeper("broken", 0.0, RuntimeError("no")), on_failure="repair")
    torch.testing.assert_close(run(mixture), model(X))
    assert "broken" not in used(mixture)[0]


def test_a_rival_that_fails_fails_alone_even_if_failures_are_to_be_raised(make_mixture, sleeper):
    mixture = make_mixture(sleeper("good", 0.0), sleeper("broken", 0.0, RuntimeError("no")))
    torch.testing.assert_close(run(mixture), model(X))
    assert used(mixture) == [{"good"}]
    assert "broken failed" in told(mixture)[0]


def test_a_rival_that_a_rule_forbids_is_left_out(make_mixture, sleeper):
    rules = [{"match": {"op": "aten.exp.*"}, "require": "first"}]
    mixture = make_mixture(sleeper("first", 0.0), sleeper("second", 0.0), rules=rules, on_failure="repair")
    torch.testing.assert_close(run(mixture), model(X))
    assert "first" in used(mixture)[0]
    assert [event for event in mixture.report().events if event.kind == "fallback"] == []


def test_nothing_is_compared_where_it_is_switched_off(make_mixture, sleeper):
    quick = sleeper("quick", 0.0)
    mixture = make_mixture(sleeper("slow", 0.001), quick, search={"first_call_s": 0.0})
    run(mixture)
    assert (told(mixture), quick.compiled) == ([], [])


def test_random_numbers_and_written_inputs_are_as_after_one_call(make_mixture, sleeper):
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return torch.dropout(x.add_(1.0).exp(), 0.5, True)

    mixture = make_mixture(sleeper("slow", 0.001), sleeper("quick", 0.0))
    mine, eagers = X.clone(), X.clone()
    torch.manual_seed(7)
    result, following = run(mixture, noisy, mine), torch.rand(3)
    torch.manual_seed(7)
    torch.testing.assert_close(result, noisy(eagers))
    torch.testing.assert_close(mine, eagers)
    torch.testing.assert_close(following, torch.rand(3))
    assert told(mixture)[0].startswith("took quick at the first call")


def test_forward_and_backward_are_compared_each(make_mixture, sleeper):
    mixture = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    mine, eagers = (X.clone().requires_grad_() for _ in range(2))
    torch.compile(lambda x: model(x).sum(), backend=mixture, dynamic=False)(mine).backward()
    model(eagers).sum().backward()
    torch.testing.assert_close(mine.grad, eagers.grad)
    assert [detail.split(" at ")[0] for detail in told(mixture)] == ["took quick", "took quick"]
    assert used(mixture) == [{"quick"}, {"quick"}]


def test_backends_with_assumed_rates_are_not_tried(make_mixture, sleeper, monkeypatch):
    monkeypatch.setattr(SessionCosts, "comparable", lambda self, graph: frozenset({"slow"}))
    quick = sleeper("quick", 0.0)
    mixture = make_mixture(sleeper("slow", 0.001), quick)
    run(mixture)
    assert (told(mixture), quick.compiled) == ([], [])


def test_weights_that_fill_the_machine_are_not_packed_again(make_mixture, sleeper, monkeypatch):
    monkeypatch.setattr(comparison_processor, "memory_bytes", lambda: 4 * X.nbytes - 1)
    quick = sleeper("quick", 0.0)
    mixture = make_mixture(sleeper("slow", 0.001), quick)
    torch.testing.assert_close(run(mixture), model(X))
    (detail,) = told(mixture)
    assert detail.startswith("not compared at the first call: inputs and weights of")
    assert "packed 2 times" in detail
    assert quick.compiled == []


def test_time_for_compiling_is_bounded(make_mixture, sleeper, monkeypatch):
    second, third = (sleeper(name, 0.0, compiling_s=0.2) for name in ("second", "third"))
    mixture = make_mixture(sleeper("first", 0.01), second, third, search={"first_call_s": 0.15})
    run(mixture)
    assert third.compiled == []
    assert used(mixture) == [{"second"}]


@pytest.mark.parametrize(
    ("pools", "factors", "build_s", "expected"),
    [
        (("torch", "torch"), (1.1, 1.2), 2.0, ["b"]),
        (("torch", "torch"), (1.2, 1.3), 2.0, []),
        (("torch", "torch"), (1.2, 1.3), 0.1, ["b", "c"]),
        (("torch", "torch"), (1.5, 1.6), 0.1, []),
        (("x", "y"), (1.6, 1.2), 2.0, ["c", "b"]),
        (("x", "x"), (1.6, 1.2), 2.0, ["c", "b"]),
        (("x", "y"), (1.8, 1.75), 0.1, []),
    ],
)
def test_rivals_on_other_pools_of_threads_need_not_come_as_near(
    make_mixture, sleeper, monkeypatch, pools, factors, build_s, expected
):
    asked = []
    estimates = {"a": 1.0, **dict(zip("bc", factors, strict=True))}

    def estimated(other, plan):
        return {name: factor * plan.estimated_s for name, factor in estimates.items()}

    monkeypatch.setattr(comparison_processor, "alone", estimated)
    original = ProcessorHarness.rivals
    monkeypatch.setattr(ProcessorHarness, "rivals", lambda *arguments: asked.append(original(*arguments)) or ())
    others = [sleeper(name, 0.0, pool=pool, build_s=build_s) for name, pool in zip("bc", pools, strict=True)]
    run(make_mixture(sleeper("a", 0.0, pool="torch"), *others))
    assert [choice.single for choice in asked[0]] == expected


@pytest.mark.parametrize(
    ("alone_s", "expected"),
    [
        ({"a": 1.3, "b": 1.25, "c": 1.2}, ["b", "a"]),
        ({"a": 1.3, "b": 1.25, "c": 1.1}, ["c", "b", "a"]),
        ({"a": 1.5, "b": 1.45, "c": 1.2}, []),
    ],
)
def test_each_owner_of_a_mixture_is_tried_alone_however_long_it_compiles(monkeypatch, alone_s, expected):
    """Where their estimates err, the mixture gathers the errors of all; who owns nothing must come nearer."""
    regions = tuple(PlannedRegion(f"r{i}", owner, (f"n{i}",), estimated_s=0.5) for i, owner in enumerate("ab"))
    plan = Plan("g", "inference", False, regions, estimated_s=1.0, single_backend_s=tuple(alone_s.items()))
    slow = SimpleNamespace(build_seconds=lambda device: SimpleNamespace(of=lambda ops: 2.0))
    backends = [SimpleNamespace(name=name, traits=lambda: Traits(thread_pool="torch")) for name in "abc"]
    costs = SimpleNamespace(comparable=lambda graph: set("abc"))
    planner = SimpleNamespace(costs=costs, backends=backends, backend=lambda name: slow)
    home = SimpleNamespace(plan=plan, graph=SimpleNamespace(placed_nodes=[None]), layout=SimpleNamespace(other=None))
    monkeypatch.setattr(comparison_processor, "other_plans", lambda *arguments: ())
    found = comparison_processor._in_inference(home, planner)
    assert [choice.single for choice in found] == expected


def test_a_rival_counts_in_the_layout_that_suits_it():
    mine = Plan("g", "inference", False, (), single_backend_s=(("a", 3.0), ("b", 5.0)))
    other = Plan("g", "inference", False, (), single_backend_s=(("a", 4.0), ("b", 2.0), ("c", 1.0)))
    assert alone(other, mine) == {"a": 3.0, "b": 2.0, "c": 1.0}
    assert alone(None, mine) == {"a": 3.0, "b": 5.0}


def test_the_mixture_of_all_that_save_anything_is_a_rival_where_it_is_another_plan():
    def plan(*owners):
        regions = (PlannedRegion(f"r{i}", owner, (f"n{i}",), estimated_s=1.0) for i, owner in enumerate(owners))
        return Plan("g", "inference", False, tuple(regions))

    def found(other, tried=frozenset()):
        names = [SimpleNamespace(name=name, traits=Traits) for name in ("a", "b")]
        planner = SimpleNamespace(backends=names, place=lambda graph, choice: other)
        return other_plans(SimpleNamespace(graph=None, plan=plan("a", "a")), planner, [EVERYONE], tried)

    assert found(plan("a", "b")) == (EVERYONE,)
    assert found(plan("a", "a")) == ()
    assert found(plan("b", "b"), frozenset({"b"})) == (), "b alone is tried already"


@pytest.mark.parametrize(
    ("owners", "order"),
    [
        (("a", "a"), ["mixture", "b", "c", "mixture of all that save anything"]),
        (("a", "b"), ["b", "c", "mixture", "mixture of all that save anything"]),
        ((), ["b", "c", "mixture", "mixture of all that save anything"]),
    ],
)
def test_among_equals_one_backend_alone_wins_and_of_those_the_one_with_the_least_estimate(owners, order):
    regions = tuple(PlannedRegion(f"r{i}", owner, (f"n{i}",), estimated_s=1.0) for i, owner in enumerate(owners))
    plan = Plan("g", "inference", False, regions) if owners else None
    choices = {EVERYONE: 0.5, Choice(single="c"): 3.0, Choice(): 1.0, Choice(single="b"): 2.0}
    trials = [Trial(choice, estimated_s, "measured", rounds_s=(1.0,)) for choice, estimated_s in choices.items()]
    assert [str(trial.choice) for trial in simplest_first(trials, plan)] == order


def test_the_mixture_of_all_that_save_anything_is_compared(make_mixture, sleeper, monkeypatch):
    monkeypatch.setattr(comparison_processor, "other_plans", lambda home, planner, mixtures, tried: tuple(mixtures))
    mixture = make_mixture(sleeper("first", 0.002), sleeper("second", 0.0))
    run(mixture)
    assert any("mixture of all that save anything" in text for text in told(mixture))
