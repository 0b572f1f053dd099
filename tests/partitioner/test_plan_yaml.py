"""Plans survive YAML, and broken plan files are told apart."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitioner_cases import random_case

from mixbackend.contracts import REFUSAL_CODES, PlacementError, Plan, PlannedRegion, Refusal
from mixbackend.partitioner import place
from mixbackend.partitioner.plan_yaml import plan_from_yaml, plan_to_yaml

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


@settings(derandomize=True, deadline=None, max_examples=60)
@given(plans)
def test_any_plan_survives(plan: Plan) -> None:
    assert plan_from_yaml(plan_to_yaml(plan)) == plan


@pytest.mark.parametrize("name", ["?a", "-", "&a", "*a", "!a", "%a", "@a", "# a", "", "null", "3", "a: b", "true", "~"])
def test_a_name_that_means_something_in_yaml_survives(name: str) -> None:
    plan = Plan("g", "inference", False, (PlannedRegion("r0", "eager", ("a", name)),))
    assert plan_from_yaml(plan_to_yaml(plan)) == plan


def test_a_real_plan_survives_and_reads_well() -> None:
    op_graph, backends, costs = random_case(3)
    plan = place(op_graph, backends, costs)
    text = plan_to_yaml(plan)
    assert plan_from_yaml(text) == plan
    assert text.startswith("version: 1\ngraph: inference-0\n")


GOOD = plan_to_yaml(Plan("g", "inference", False, (PlannedRegion("r0", "eager", ("a",)),)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version: 1", "version: 2", "version 1"),
        ("version: 1", "version: [", "not valid YAML"),
        ("graph: g", "grahp: g", "no 'graph'"),
        ("phase: inference", "phase: sideways", "sideways"),
        ("backend: eager", "backend: 3", r"regions\[0\].backend is 3"),
        ("nodes: [a]", "nodes: [7]", "holds 7"),
        ("search: exact", "search: !!python/object/apply:os.getcwd []", "not valid YAML"),
    ],
)
def test_broken_plans_are_refused_with_the_place(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(PlacementError, match=message):
        plan_from_yaml(GOOD.replace(old, new, 1))


def test_a_text_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(PlacementError, match="not a plan"):
        plan_from_yaml("- 1\n- 2\n")
