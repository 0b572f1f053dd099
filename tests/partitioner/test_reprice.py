"""What given plans cost: the price of a fresh plan is its own estimate; other costs give other prices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitioner_cases import random_case
from tiers import draws

from mixbackend.partitioner import place
from mixbackend.partitioner.reprice import reprice

common = settings(derandomize=True, deadline=None, max_examples=draws(21, 60))


@common
@given(st.integers(0, 10_000), st.integers(1, 40))
def test_a_fresh_plan_costs_what_it_was_estimated_at(seed: int, most: int) -> None:
    op_graph, backends, costs = random_case(seed, most)
    plan = place(op_graph, backends, costs)
    found = reprice(op_graph, [plan], backends, costs, bounded=True)
    assert found.seconds == (pytest.approx(plan.estimated_s, rel=1e-9),)
    assert found.bound_s <= plan.estimated_s + 1e-12


@common
@given(st.integers(0, 10_000), st.integers(1, 40))
def test_no_plan_is_cheaper_than_the_bound(seed: int, most: int) -> None:
    op_graph, backends, costs = random_case(seed, most)
    plans = [place(op_graph, backends, costs, single=backend.name) for backend in backends]
    found = reprice(op_graph, plans, backends, costs, bounded=True)
    for plan, seconds in zip(plans, found.seconds, strict=True):
        assert seconds == pytest.approx(plan.estimated_s, rel=1e-9)
        assert seconds >= found.bound_s - 1e-12


def test_a_plan_with_a_backend_that_is_not_there_has_no_price() -> None:
    op_graph, backends, costs = random_case(3, 10)
    plan = place(op_graph, backends, costs)
    foreign = replace(plan, regions=tuple(replace(region, backend="gone") for region in plan.regions))
    assert reprice(op_graph, [foreign, plan], backends, costs).seconds[0] is None
    assert reprice(op_graph, [foreign, plan], backends, costs).seconds[1] == pytest.approx(plan.estimated_s)


def test_a_plan_of_another_graph_has_no_price() -> None:
    op_graph, backends, costs = random_case(3, 10)
    plan = place(op_graph, backends, costs)
    assert reprice(op_graph, [replace(plan, regions=plan.regions[1:])], backends, costs).seconds == (None,)
