"""Counterfactuals: alternatives of regions and nodes, margins, refusals, what estimates are made of."""

from __future__ import annotations

import pytest
from brute_force import least_energy
from counterfactuals import Case, priced, random_priced
from hypothesis import given, settings
from hypothesis import strategies as st
from partitioner_cases import BINARY, MATMUL, POINTWISE, TableBackend, TableCosts, eager, graph, node, random_case
from tiers import draws

from mixbackend.contracts import (
    Any,
    NodeMatch,
    Op,
    OpTag,
    Pattern,
    PlacementError,
    Preference,
    Refusal,
    RegionConditions,
    Traits,
)
from mixbackend.partitioner import place
from mixbackend.partitioner.alternatives import Alternative, margin, region_alternatives
from mixbackend.partitioner.breakdown import parts_of
from mixbackend.partitioner.counterfactuals import Counterfactuals
from mixbackend.partitioner.energy import true_energy
from mixbackend.partitioner.explain import Question
from mixbackend.partitioner.placement import make_problem
from mixbackend.partitioner.step_clock import StepClock

common = settings(derandomize=True, deadline=None, max_examples=draws(21, 60))
seeds = st.integers(0, 10_000)
FREE = TableCosts(0, entries={"fast": 0.5, "other": 0.5, "eager": 0.5}, reads=0.0, writes=0.0, crossings=0.0)
CHAIN = graph(
    [
        node("a", MATMUL, "x0", "w0", module="m.0"),
        node("b", POINTWISE, "a", module="m.1"),
        node("v", "aten.view.default", "b", tags=(OpTag.VIEW,)),
        node("c", MATMUL, "v", "w0", module="m.2"),
    ],
    ["c"],
)


def fast(**more: object) -> TableBackend:
    return TableBackend("fast", costs={"": 0.1}, **more)  # type: ignore[arg-type]


def counterfactuals_of(case: Case) -> Counterfactuals:
    return Counterfactuals(Question(case.graph, case.backends, case.costs, case.plan))


def three() -> Case:
    """Fast everywhere; ``other`` refuses what costs most, eager runs all."""
    costly = TableBackend("other", refused=frozenset({"m.1"}), costs={"": 0.4})
    return priced(CHAIN, [fast(), costly, eager(costs={"": 1.0})], FREE)


def test_a_region_tells_of_every_other_backend() -> None:
    (region,) = counterfactuals_of(three()).regions
    other, last = region.alternatives
    # Two products on the other backend, and what it refuses stays: three regions instead of one.
    assert (other.backend, other.nodes) == ("other", 2) and other.change_s == pytest.approx(2 * 0.3 + 2 * 0.5)
    assert other.refused == Refusal("b", "other", "unknown-op", f"no rule for {POINTWISE}")
    assert (last.backend, last.nodes, last.refused) == ("eager", 4, None)
    assert last.change_s == pytest.approx(3 * 0.9) and region.margin_s == pytest.approx(1.6)


def test_who_refuses_everything_has_no_price() -> None:
    useless = TableBackend("other", refused=frozenset({"m.0", "m.1", "m.2"}))
    (region,) = counterfactuals_of(priced(CHAIN, [fast(), useless, eager(costs={"": 1.0})], FREE)).regions
    refused = region.alternatives[0].refused
    assert region.alternatives[0].change_s is None and refused is not None and refused.node == "a"


def test_a_region_that_is_too_small_elsewhere_is_refused_there() -> None:
    picky = TableBackend("other", costs={"": 0.2}, wanted=RegionConditions(minimum_ops=9))
    (region,) = counterfactuals_of(priced(CHAIN, [fast(), picky, eager(costs={"": 1.0})], FREE)).regions
    assert region.alternatives[0] == Alternative(
        "other", None, 4, Refusal("a", "other", "region-too-small", "3 ops, needed 9")
    )


def test_a_margin_is_that_of_the_next_best_and_never_below_zero() -> None:
    rows = [Alternative("a", 0.5), Alternative("b", None), Alternative("c", 0.2)]
    assert margin(rows) == 0.2
    assert margin([*rows, Alternative("d", -0.1)]) == 0.0
    assert margin([Alternative("b", None)]) is None and margin([]) is None


def test_what_was_not_decided_by_estimates_may_be_dearer_than_an_alternative() -> None:
    backends = [fast(), eager(costs={"": 1.0})]
    plan = place(CHAIN, backends, FREE, single="eager")
    (region,) = Counterfactuals(Question(CHAIN, backends, FREE, plan)).regions
    assert region.alternatives[0].change_s == pytest.approx(-2.7) and region.margin_s == 0.0


def test_costliest_regions_come_first_and_work_is_bounded() -> None:
    case = next(case for seed in range(99) if len(set((case := random_priced(seed, 30)).placement.regions)) > 4)
    everything = region_alternatives(case.problem, case.placement, case.rules, work=None)
    assert sorted(everything) == sorted(set(case.placement.regions))
    ((first, rows),) = region_alternatives(case.problem, case.placement, case.rules, work=0).items()
    costliest = max(case.plan.regions, key=lambda region: region.estimated_s)
    assert case.plan.regions[first].estimated_s == costliest.estimated_s and rows == everything[first]


@common
@given(seeds, st.integers(1, 25))
def test_parts_add_up_to_the_energy_of_the_plan(seed: int, most: int) -> None:
    case = random_priced(seed, most)
    parts = [parts_of(case.problem, case.placement, atom, case.costs) for atom in range(case.problem.size)]
    assert sum(part.total_s for part in parts) == pytest.approx(true_energy(case.problem, case.placement))
    assert all(min(part.op_s, part.reads_s, part.writes_s, part.crossings_s, part.entry_s) >= 0.0 for part in parts)


def test_parts_say_where_each_figure_comes_from() -> None:
    pair = Pattern("pair", Op((POINTWISE,), (Op((MATMUL,), (Any("x"), Any("w"))),)), cost=lambda match: 0.05)
    matching = TableBackend("fast", costs={"": 0.1}, claims=(pair,), declared=Traits(fused=frozenset()))
    costs = TableCosts(3, entries={"fast": 0.6, "eager": 0.2}, ops={("eager", ""): 4.0}, writes=0.0)
    case = priced(CHAIN, [matching, eager()], costs)
    a, b, v, _ = counterfactuals_of(case).nodes(["a", "b", "v", "c"])
    assert (a.parts.pattern, a.parts.origin, a.parts.op_s) == ("pair", "backend", 0.0)
    assert (b.parts.pattern, b.parts.op_s) == ("pair", 0.05)
    assert b.parts.entry_s == pytest.approx(0.6 / 3)
    assert (v.node, v.follows, v.parts) == ("v", "b", b.parts)
    (option,) = a.options
    assert option.parts is not None and (option.parts.op_s, option.parts.origin) == (4.0, "prior")


def test_preferences_and_refusals_show_in_counterfactuals() -> None:
    rules = [Preference(NodeMatch(module="m.1"), "forbid", "other"), Preference(NodeMatch(), "prefer", "eager", 0.5)]
    backends = [fast(), TableBackend("other", costs={"": 0.2}), eager(costs={"": 1.0})]
    plan = place(CHAIN, backends, FREE, preferences=rules)
    counterfactuals = Counterfactuals(Question(CHAIN, backends, FREE, plan, preferences=rules))
    (b,) = counterfactuals.nodes(["b"])
    forbidden, preferred = b.options
    assert forbidden.alternative.refused is not None and forbidden.alternative.refused.code == "preference"
    assert forbidden.parts is None and preferred.parts is not None
    # The rule for m.1 is the first that matches b, so that eager's preference does not count there.
    assert preferred.parts.op_s == 1.0
    (c,) = counterfactuals.nodes(["c"])
    assert c.options[1].parts is not None and c.options[1].parts.op_s == 0.5


def test_a_node_that_only_a_match_can_run_takes_its_partners_along() -> None:
    pair = Pattern("pair", Op((POINTWISE,), (Op((MATMUL,), (Any("x"), Any("w"))),)), cost=lambda match: 0.3)
    matching = TableBackend("other", refused=frozenset({"m.0", "m.1", "m.2"}), claims=(pair,))
    case = priced(CHAIN, [fast(), matching, eager(costs={"": 1.0})], FREE)
    (a,) = counterfactuals_of(case).nodes(["a"])
    option = a.options[0]
    assert option.alternative.nodes == 3 and option.alternative.refused is None  # a, b and b's view
    assert option.along == ("b",)
    assert option.alternative.change_s == pytest.approx(0.3 - 0.2 + 0.5)


def test_a_match_that_cannot_be_dissolved_goes_or_stays_as_a_whole() -> None:
    pair = Pattern("pair", Op((POINTWISE,), (Op((MATMUL,), (Any("x"), Any("w"))),)), cost=lambda match: 0.1)
    only_matched = fast(refused=frozenset({"m.0", "m.1"}), claims=(pair,))
    takes_products = TableBackend("other", refused=frozenset({"m.1"}), costs={"": 0.4})
    nodes = [*CHAIN.nodes[:3], node("c", BINARY, "v", "v", module="m.2")]
    case = priced(graph(nodes, ["c"]), [only_matched, takes_products, eager(costs={"": 1.0})], FREE)
    assert [names for region in case.plan.regions for _, names in region.matches] == [("a", "b")]
    (b,) = counterfactuals_of(case).nodes(["b"])
    assert b.options[0].alternative.refused is not None
    assert (b.options[1].alternative.nodes, b.options[1].alternative.change_s) == (3, pytest.approx(1.9 + 0.5))
    (region,) = counterfactuals_of(case).regions
    # The other backend could run the product and the sum, but the product is held by its match.
    assert region.alternatives[0].nodes == 1
    assert region.alternatives[0].change_s == pytest.approx(0.3 + 0.5)
    assert region.alternatives[0].refused is not None and region.alternatives[0].refused.node == "b"


def test_the_rest_may_follow_a_pinned_node() -> None:
    """Moved alone, a node pays two borders; with the rest free, the neighbours come along."""
    near = TableBackend("other", costs={"": 0.11})
    case = priced(CHAIN, [fast(), near, eager(costs={"": 1.0})], FREE)
    (b,) = counterfactuals_of(case).nodes(["b"], placed=1)
    assert b.options[0].alternative.change_s == pytest.approx(0.01 + 2 * 0.5)
    assert b.options[0].adapted_s == pytest.approx(3 * 0.01)
    assert b.options[1].adapted_s is None  # one placement was allowed


@pytest.mark.sampled(1)
@pytest.mark.parametrize("block", range(2))
def test_adapted_plans_against_brute_force(block: int) -> None:
    exact = 0
    for seed in range(15 * block, 15 * block + 15):
        op_graph, backends, costs = random_case(seed, most=6)
        case = priced(op_graph, backends, costs)
        counterfactuals = counterfactuals_of(case)
        for row in counterfactuals.nodes(case.problem.atoms.cores, placed=99):
            for option in row.options:
                if option.adapted_s is None:
                    assert option.parts is None
                    continue
                pins = {row.node: option.alternative.backend}
                least = least_energy(make_problem(op_graph, backends, costs, (), frozenset(), pins, StepClock()))
                assert option.adapted_s >= least - case.plan.estimated_s - 1e-9
                assert option.alternative.change_s is not None
                assert least - case.plan.estimated_s <= option.alternative.change_s + 1e-9
                exact += option.adapted_s == pytest.approx(least - case.plan.estimated_s, abs=1e-9)
    assert exact > 50


def test_a_plan_of_fewer_backends_is_priced_with_those_where_more_tear_it_apart() -> None:
    """A view that some other backend refuses is a piece of its own for all of them, but not in this plan."""
    nodes = [
        node("t", "aten.view.default", "x0", tags=(OpTag.VIEW,)),
        node("a", POINTWISE, "t", module="m.0"),
        node("b", MATMUL, "a", "w0", module="m.1"),
        node("c", BINARY, "b", "t", module="m.2"),
    ]
    few = [fast(refused=frozenset({"m.1"})), eager(costs={"": 1.0})]
    plan = place(graph(nodes, ["c"]), few, FREE)
    assert [region.copies for region in plan.regions] == [(), (), ("t",)]
    more = [*few[:1], TableBackend("other", refused=frozenset({"t"}), costs={"": 9.0}), few[1]]
    op_graph = graph(nodes, ["c"])
    counterfactuals = Counterfactuals(Question(op_graph, more, FREE, plan), planned_with=few)
    assert {item.backend for region in counterfactuals.regions for item in region.alternatives} <= {
        "fast",
        "other",
        "eager",
    }
    assert [region.region for region in counterfactuals.regions] == ["r0", "r1", "r2"]


def test_a_plan_that_nobody_can_run_any_more_is_an_error() -> None:
    plan = place(CHAIN, [fast(), eager(costs={"": 1.0})], FREE)
    refusing = [fast(refused=frozenset({"m.1"})), eager(costs={"": 1.0})]
    with pytest.raises(PlacementError, match="cannot be priced"):
        _ = Counterfactuals(Question(CHAIN, refusing, FREE, plan)).regions
