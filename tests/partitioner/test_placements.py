"""Several placements of one graph: equal to those made one by one, with all that costs do not change done once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitioner_cases import TableCosts, random_case
from tiers import draws

from mixbackend.contracts import CostModel
from mixbackend.partitioner import place
from mixbackend.partitioner import placement as placement_module
from mixbackend.partitioner.placement import Placements
from mixbackend.partitioner.reprice import reprice

common = settings(derandomize=True, deadline=None, max_examples=draws(10, 60))
MARGINS = (0.0, 0.04, 0.5)


def _several_costs(seed: int) -> list[CostModel]:
    return [TableCosts(seed + number) for number in range(3)]


@common
@given(st.integers(0, 10_000), st.integers(1, 40))
def test_plans_are_those_of_placements_by_themselves(seed: int, most: int) -> None:
    op_graph, backends, _ = random_case(seed, most)
    placements = Placements(op_graph, backends)
    for costs in _several_costs(seed):
        for margin in MARGINS:
            assert placements.plan(costs, margin=margin) == place(op_graph, backends, costs, margin=margin)
        alone = backends[0].name
        assert placements.plan(costs, single_backend=alone) == place(op_graph, backends, costs, single=alone)


@common
@given(st.integers(0, 10_000), st.integers(1, 40))
def test_seconds_are_those_of_an_appraisal(seed: int, most: int) -> None:
    op_graph, backends, _ = random_case(seed, most)
    placements = Placements(op_graph, backends)
    first, *others = _several_costs(seed)
    plan = placements.plan(first)
    assert placements.seconds(plan, first) == pytest.approx(plan.estimated_s, rel=1e-9)
    for costs in others:
        assert (placements.seconds(plan, costs),) == reprice(op_graph, [plan], backends, costs).seconds


@common
@given(st.integers(0, 10_000), st.integers(1, 20))
def test_corrections_of_one_plan_are_not_those_of_the_next(seed: int, most: int) -> None:
    op_graph, backends, costs = random_case(seed, most)
    placements = Placements(op_graph, backends)
    before = placements.plan(costs)
    dear = {(node.name, backends[0].name): 1.0 for node in op_graph.placed_nodes}
    corrected = placements.plan(costs, corrections=dear)
    assert corrected == place(op_graph, backends, costs, corrections=dear)
    assert placements.plan(costs) == before


def test_a_graph_is_judged_once_and_searched_once_for_each_of_its_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    op_graph, backends, _ = random_case(3, 30)
    done = _counted(monkeypatch, "judge", "solve")
    placements = Placements(op_graph, backends)
    several = _several_costs(3)
    for costs in [*several, *several]:
        placements.seconds(placements.plan(costs, margin=0.04), several[0])
    assert done == {"judge": 1, "solve": len(several)}


def _counted(monkeypatch: pytest.MonkeyPatch, *names: str) -> dict[str, int]:
    done = dict.fromkeys(names, 0)

    def counting(name: str) -> None:
        original = getattr(placement_module, name)

        def counted(*arguments: object) -> object:
            done[name] += 1
            return original(*arguments)

        monkeypatch.setattr(placement_module, name, counted)

    for name in names:
        counting(name)
    return done
