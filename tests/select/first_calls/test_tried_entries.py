"""Plans by estimates are held against others by the user's own calls: what wins, what is kept, what is left alone."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stand_in_backends import settle

from mixbackend.contracts import Plan, PlannedRegion, Traits
from mixbackend.cost.costs import SessionCosts
from mixbackend.partitioner import plan_revalidation
from mixbackend.partitioner.placement import Placements
from mixbackend.select import tuner
from mixbackend.select.live import processor_challengers as processor
from mixbackend.select.live.challengers import worth_trying
from mixbackend.select.live.gpu_challengers import gpu_challengers
from mixbackend.select.live.processor_challengers import processor_challengers

pytestmark = pytest.mark.usefixtures("worth_comparing", "tried_at_once")

X = torch.randn(8, 8)


def model(x: torch.Tensor) -> torch.Tensor:
    return (x.exp() + 1.0).relu()


def run(mixture: Any, function: Callable[..., torch.Tensor] = model) -> None:
    """Calls until it is settled, each held against eager."""
    with torch.no_grad():
        compiled = torch.compile(function, backend=mixture, dynamic=False)
        settle(mixture, lambda: torch.testing.assert_close(compiled(X), function(X)))


def used(mixture: Any) -> list[set[str]]:
    return [{region.backend for region in graph.plan.regions} for graph in mixture.report().graphs]


def told(mixture: Any) -> list[str]:
    return [event.detail for event in mixture.report().events if event.kind == "tuning"]


def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions are kept although the backends are of this process alone; nothing is built behind."""
    monkeypatch.setattr(tuner, "why_untunable", lambda environment: "")
    monkeypatch.setenv("MIXBACKEND_BACKGROUND", "off")


def test_the_quicker_single_backend_takes_over_and_is_remembered(make_mixture, sleeper, monkeypatch):
    nowhere(monkeypatch)
    mixture = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    run(mixture)
    assert used(mixture) == [{"quick"}]
    assert told(mixture)[0].startswith("quick took the place of mixture at call ")
    (graph,) = mixture.report().to_dict()["graphs"]
    assert graph["tuning"]["chosen"] == graph["selection"]["champion"] == "quick"

    torch._dynamo.reset()
    slow, quick = sleeper("slow", 0.01), sleeper("quick", 0.0)
    later, searches = make_mixture(slow, quick), []
    monkeypatch.setattr(Placements, "plan", lambda *_, **__: searches.append("searched"))
    run(later)
    assert used(later) == [{"quick"}]
    assert (len(slow.compiled), told(later), searches) == (0, [], [])
    (graph,) = later.report().to_dict()["graphs"]
    assert graph["tuning"]["chosen"] == "quick"


def test_the_first_call_compiles_and_runs_the_plan_by_estimates_alone(make_mixture, sleeper):
    slow, quick = sleeper("slow", 0.01), sleeper("quick", 0.0)
    mixture = make_mixture(slow, quick)
    with torch.no_grad():
        torch.compile(model, backend=mixture, dynamic=False)(X)
    assert (len(slow.compiled), quick.compiled, told(mixture), mixture.settled()) == (1, [], [], False)


def test_a_remembered_plan_that_does_not_hold_is_searched_again(make_mixture, sleeper, monkeypatch):
    nowhere(monkeypatch)
    first = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    run(first)
    assert used(first) == [{"quick"}]
    torch._dynamo.reset()
    later = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    monkeypatch.setattr(plan_revalidation, "find_problems", lambda *_: ["it is another graph"])
    run(later)
    assert used(later) == [{"quick"}]
    assert "does not hold: it is another graph" in told(later)[0]


def test_the_plan_by_estimates_stays_where_it_is_the_quickest(make_mixture, sleeper):
    mixture = make_mixture(sleeper("quick", 0.0), sleeper("slow", 0.01))
    run(mixture)
    assert used(mixture) == [{"quick"}]
    assert told(mixture)[0].startswith("slow did not take the place of mixture")


def test_weights_that_change_while_others_are_tried_are_seen(make_mixture, sleeper):
    linear = torch.nn.Linear(8, 8)
    mixture = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    with torch.no_grad():
        compiled = torch.compile(linear, backend=mixture, dynamic=False)

        def call() -> None:
            torch.testing.assert_close(compiled(X), linear(X))
            linear.weight.mul_(1.01)

        settle(mixture, call)
        call(), call()
    assert used(mixture) == [{"quick"}]


def test_layers_that_share_a_graph_take_what_the_first_one_showed(make_mixture, sleeper):
    layers = [torch.nn.Linear(8, 8) for _ in range(3)]
    mixture = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    with torch.no_grad():
        compiled = torch.compile(lambda layer, x: layer(x), backend=mixture, dynamic=False)

        def call() -> None:
            for layer in layers:
                torch.testing.assert_close(compiled(layer, X), layer(X))

        settle(mixture, call)
        call()
    (executable,) = mixture._graphs
    assert len(executable.rows) == len(used(mixture)) == 3
    assert used(mixture) == [{"quick"}] * 3
    assert sum("quick took the place" in text for text in told(mixture)) == 1, "compared once"


def test_a_rival_that_fails_costs_nothing_but_its_time(make_mixture, sleeper):
    mixture = make_mixture(sleeper("good", 0.001), sleeper("broken", 0.0, RuntimeError("no")), on_failure="repair")
    run(mixture)
    assert "broken" not in used(mixture)[0]


def test_a_rival_that_fails_fails_alone_even_if_failures_are_to_be_raised(make_mixture, sleeper):
    mixture = make_mixture(sleeper("good", 0.0), sleeper("broken", 0.0, RuntimeError("no")))
    run(mixture)
    assert used(mixture) == [{"good"}]
    assert "broken is out at call" in told(mixture)[0]


def test_a_rival_that_a_rule_forbids_is_left_out(make_mixture, sleeper):
    rules = [{"match": {"op": "aten.exp.*"}, "require": "first"}]
    mixture = make_mixture(sleeper("first", 0.0), sleeper("second", 0.0), rules=rules, on_failure="repair")
    run(mixture)
    assert "first" in used(mixture)[0]
    assert [event for event in mixture.report().events if event.kind == "fallback"] == []


def test_nothing_is_compared_where_it_is_switched_off(make_mixture, sleeper):
    quick = sleeper("quick", 0.0)
    mixture = make_mixture(sleeper("slow", 0.001), quick, select="off")
    run(mixture)
    assert (told(mixture), quick.compiled) == ([], [])


def test_every_call_draws_and_writes_once(make_mixture, sleeper):
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return torch.dropout(x.add_(1.0).exp(), 0.5, True)

    mixture = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    compiled = torch.compile(noisy, backend=mixture, dynamic=False)
    mine, eagers = X.clone(), X.clone()

    def call() -> None:
        mine.copy_(X), eagers.copy_(X)
        torch.manual_seed(7)
        result, following = compiled(mine), torch.rand(3)
        torch.manual_seed(7)
        torch.testing.assert_close(result, noisy(eagers))
        torch.testing.assert_close(mine, eagers)
        torch.testing.assert_close(following, torch.rand(3))

    with torch.no_grad():
        settle(mixture, call)
    assert any("quick took the place of mixture" in text for text in told(mixture))


def test_backends_with_assumed_rates_are_not_tried(make_mixture, sleeper, monkeypatch):
    monkeypatch.setattr(SessionCosts, "comparable", lambda self, graph: frozenset({"slow"}))
    quick = sleeper("quick", 0.0)
    mixture = make_mixture(sleeper("slow", 0.001), quick)
    run(mixture)
    assert (told(mixture), quick.compiled) == ([], [])


def test_weights_that_fill_the_machine_are_not_packed_again(make_mixture, sleeper, monkeypatch):
    monkeypatch.setattr(processor, "memory_bytes", lambda: 4 * X.nbytes - 1)
    quick = sleeper("quick", 0.0)
    mixture = make_mixture(sleeper("slow", 0.001), quick)
    run(mixture)
    (detail,) = told(mixture)
    assert detail.startswith("not compared with others: inputs and weights of")
    assert "packed 2 times" in detail
    assert quick.compiled == []


@pytest.mark.parametrize(
    ("pools", "build_s", "expected"),
    [
        (("torch", "torch"), 2.0, {"b": 1.15, "c": 1.15}),
        (("torch", "torch"), 0.1, {"b": 1.4, "c": 1.4}),
        (("x", "y"), 2.0, {"b": 1.7, "c": 1.7}),
        (("x", "torch"), 2.0, {"b": 1.7, "c": 1.15}),
    ],
)
def test_estimates_of_other_pools_of_threads_are_trusted_less(pools, build_s, expected):
    regions = (PlannedRegion("r", "a", ("n",), estimated_s=1.0),)
    found = challengers(
        regions, {"a": 1.0, "b": 1.1, "c": 1.2}, dict(zip("abc", ("torch", *pools), strict=True)), build_s
    )
    assert {item.choice.single: item.error for item in found if item.choice.single} == expected


def test_each_owner_of_a_mixture_is_tried_alone_and_all_that_save_anything():
    """Where their estimates err, the mixture gathers the errors of all."""
    regions = tuple(PlannedRegion(f"r{i}", owner, (f"n{i}",), estimated_s=0.5) for i, owner in enumerate("ab"))
    found = challengers(regions, {"a": 1.3, "b": 1.25, "c": 1.2}, dict.fromkeys("abc", "torch"), 2.0)
    assert {str(item.choice): item.error for item in found} == {
        "a": 1.4,
        "b": 1.4,
        "c": 1.15,
        "mixture of all that save anything": 1.15,
    }


def test_in_training_the_nearest_three_and_mixtures_with_and_without_large_owners_are_tried():
    regions = tuple(PlannedRegion(f"r{i}", owner, (f"n{i}",), estimated_s=0.5) for i, owner in enumerate("ab"))
    estimates = {"a": 1.3, "b": 3.0, "c": 1.2, "d": 1.25}
    found = challengers(regions, estimates, dict.fromkeys("abcd", "torch"), 2.0, phase="forward")
    mixtures = ["mixture of all that save anything", "mixture of b, c, d", "mixture of a, c, d"]
    assert [str(item.choice) for item in found] == ["c", "d", "a", *mixtures]
    assert {item.error for item in found} == {2.5}


def test_forward_and_backward_are_tried_each(make_mixture, sleeper):
    mixture = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    compiled = torch.compile(lambda x: model(x).sum(), backend=mixture, dynamic=False)

    def step() -> None:
        mine, eagers = (X.clone().requires_grad_() for _ in range(2))
        compiled(mine).backward()
        model(eagers).sum().backward()
        torch.testing.assert_close(mine.grad, eagers.grad)

    settle(mixture, step)
    assert sum(text.startswith("quick took the place of mixture") for text in told(mixture)) == 2
    assert used(mixture) == [{"quick"}, {"quick"}]


def test_a_forward_that_a_checkpoint_runs_again_tries_nothing(make_mixture, sleeper):
    quick = sleeper("quick", 0.0)
    mixture = make_mixture(sleeper("slow", 0.01), quick)
    compiled = torch.compile(lambda x: model(x).sum(), backend=mixture, dynamic=False)

    def step() -> None:
        mine, eagers = (X.clone().requires_grad_() for _ in range(2))
        torch.utils.checkpoint.checkpoint(compiled, mine, use_reentrant=False).backward()
        model(eagers).sum().backward()
        torch.testing.assert_close(mine.grad, eagers.grad)

    settle(mixture, step)
    forward, backward = mixture.report().to_dict()["graphs"]
    assert (forward["phase"], forward["selection"]["happened"]) == ("forward", [])
    assert backward["selection"]["champion"] == "quick"


@pytest.mark.parametrize("phase", ["inference", "backward"])
def test_a_compiler_of_whole_graphs_is_always_tried(phase):
    regions = (PlannedRegion("r", "a", ("n",), estimated_s=1.0),)
    estimates = {"a": 1.0, "b": 1.1, "c": 1.2, "d": 1.3, "e": 90.0, "whole": 80.0}
    found = challengers(regions, estimates, dict.fromkeys(estimates, "torch"), 2.0, phase, whole=("whole",))
    tried = [str(item.choice) for item in worth_trying(found, 1.0)]
    assert "whole" in tried and "e" not in tried
    assert [str(item.choice) for item in found if item.always] == ["whole"]


@pytest.mark.parametrize("names", [{"whole"}, set()])
def test_on_gpus_it_is_always_tried_too(names):
    regions = (PlannedRegion("r", "a", ("n",), estimated_s=1.0),)
    estimates = {"a": 1.0, "b": 1.1, "c": 1.2, "d": 1.3, "whole": 80.0}
    found = challengers(regions, estimates, {}, 2.0, whole=names, device_type="cuda", find=gpu_challengers)
    singles = [str(item.choice) for item in found if item.choice.single]
    assert singles == ["b", "c", "d", *names]
    assert {str(item.choice) for item in worth_trying(found, 1.0) if item.choice.single} == set(singles)


def challengers(
    regions,
    alone_s,
    pools,
    build_s,
    phase="inference",
    whole=(),
    device_type="cpu",
    find=processor_challengers,
    stated=0.0,
):
    plan = Plan("g", phase, False, regions, estimated_s=1.0, single_backend_s=tuple(alone_s.items()))
    backends = {
        name: SimpleNamespace(
            name=name,
            traits=lambda name=name: Traits(
                frozenset({device_type}),
                thread_pool=pools.get(name, ""),
                reference=name == "eager",
                compiles_graphs=name in whole,
            ),
            build_seconds=lambda device: SimpleNamespace(of=lambda ops: build_s),
        )
        for name in (*alone_s, "eager")
    }
    planner: Any = SimpleNamespace(
        comparable=lambda graph: dict.fromkeys(alone_s, stated),
        backends=tuple(backends.values()),
        backend=backends.__getitem__,
    )
    graph = SimpleNamespace(placed_nodes=[None], device_type=device_type, phase=phase)
    home: Any = SimpleNamespace(plan=plan, graph=graph, layout=SimpleNamespace(other=None))
    return find(home, planner)


@pytest.mark.parametrize(("stated", "error"), [(0.0, 1.15), (0.1, 1.15), (0.3, 1.3)])
def test_rates_of_a_table_are_as_uncertain_as_they_state(stated, error):
    regions = (PlannedRegion("r", "a", ("n",), estimated_s=1.0),)
    found = challengers(regions, {"a": 1.0, "b": 1.1}, dict.fromkeys("ab", "torch"), 2.0, stated=stated)
    assert {item.error for item in found if item.choice.single} == {error}
