"""Which plans are held against the plan by estimates, and which of equals wins."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mixbackend.contracts import Plan, PlannedRegion, Traits
from mixbackend.plan.choice import Choice
from mixbackend.select.comparison import simplest_first
from mixbackend.select.decision import Trial
from mixbackend.select.rivals import EVERY_BACKEND, alone, other_plans


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
        return other_plans(SimpleNamespace(graph=None, plan=plan("a", "a")), planner, [EVERY_BACKEND], tried)

    assert found(plan("a", "b")) == (EVERY_BACKEND,)
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
    choices = {EVERY_BACKEND: 0.5, Choice(single="c"): 3.0, Choice(): 1.0, Choice(single="b"): 2.0}
    trials = [Trial(choice, estimated_s, "measured", rounds_s=(1.0,)) for choice, estimated_s in choices.items()]
    assert [str(trial.choice) for trial in simplest_first(trials, plan)] == order
