"""Plans survive as plain data, and broken data is told apart."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitioner_cases import random_case
from tiers import draws

from mixbackend.contracts import REFUSAL_CODES, PlacementError, Plan, PlannedRegion, Refusal
from mixbackend.partitioner import place
from mixbackend.partitioner.plan_data import plan_from_data, plan_to_data

names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)
backend_names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
seconds = st.floats(min_value=0.0, max_value=1e9, allow_nan=False)
regions = st.builds(
    PlannedRegion,
    id=names,
    backend=backend_names,
    nodes=st.lists(names, min_size=1, max_size=4).map(tuple),
    copies=st.lists(names, max_size=2).map(tuple),
    matches=st.lists(st.tuples(names, st.lists(names, max_size=3).map(tuple)), max_size=2).map(tuple),
    estimated_s=seconds,
)
plans = st.builds(
    Plan,
    graph_id=names,
    phase=st.sampled_from(["inference", "forward", "backward"]),
    dynamic=st.booleans(),
    regions=st.lists(regions, max_size=3).map(tuple),
    refusals=st.lists(
        st.builds(
            Refusal, node=names, backend=backend_names, code=st.sampled_from(REFUSAL_CODES), detail=st.text(max_size=20)
        ),
        max_size=3,
    ).map(tuple),
    estimated_s=seconds,
    lower_bound_s=seconds,
    single_backend_s=st.dictionaries(backend_names, seconds, max_size=3).map(lambda table: tuple(table.items())),
    width=st.integers(0, 9),
    search=st.sampled_from(["exact", "expansion", "beam"]),
)


def through_json(plan: Plan) -> Plan:
    return plan_from_data(json.loads(json.dumps(plan_to_data(plan))))


@settings(derandomize=True, deadline=None, max_examples=draws(10, 60))
@given(plans)
def test_any_plan_survives(plan: Plan) -> None:
    assert through_json(plan) == plan


def test_a_real_plan_survives() -> None:
    plan = place(*random_case(3))
    assert through_json(plan) == plan


GOOD = plan_to_data(Plan("g", "inference", False, (PlannedRegion("r0", "eager", ("a",)),)))
(REGION,) = GOOD["regions"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({**GOOD, "version": 2}, "version 1"),
        ({key: value for key, value in GOOD.items() if key != "graph"}, "no 'graph'"),
        ({**GOOD, "phase": "sideways"}, "sideways"),
        ({**GOOD, "regions": [{**REGION, "backend": 3}]}, r"regions\[0\].backend is 3"),
        ({**GOOD, "regions": [{**REGION, "nodes": [7]}]}, "holds 7"),
        ([1, 2], "not a plan"),
    ],
)
def test_broken_plans_are_refused_with_the_place(data: object, message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        plan_from_data(data)
