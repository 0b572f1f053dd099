"""Plans by estimates of training are held against others at the first call; which those are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mixbackend.contracts import Plan, PlannedRegion, Traits
from mixbackend.plan.choice import Choice
from mixbackend.select.comparison import simplest_first
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


def used_after(mixture: Any) -> list[set[str]]:
    torch.testing.assert_close(run(mixture), model(X))
    return used(mixture)


def test_forward_and_backward_are_compared_each(make_mixture, sleeper):
    mixture = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    mine, eagers = (X.clone().requires_grad_() for _ in range(2))
    torch.compile(lambda x: model(x).sum(), backend=mixture, dynamic=False)(mine).backward()
    model(eagers).sum().backward()
    torch.testing.assert_close(mine.grad, eagers.grad)
    assert [detail.split(" at ")[0] for detail in told(mixture)] == ["took quick", "took quick"]
    assert used(mixture) == [{"quick"}, {"quick"}]


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
