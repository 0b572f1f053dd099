"""One change of a placement: exact prices, legal plans, against brute force over all ways to make the change."""

from __future__ import annotations

import pytest
from counterfactuals import Case, least_after, priced, problems_of, random_priced
from hypothesis import given, settings
from hypothesis import strategies as st
from partitioner_cases import BINARY, MATMUL, POINTWISE, TableBackend, TableCosts, eager, graph, node
from tiers import draws

from mixbackend.contracts import Any, Op, Pattern, PlacementError, RegionConditions, RegionSketch
from mixbackend.partitioner import place
from mixbackend.partitioner.assemble import assemble
from mixbackend.partitioner.energy import true_energy
from mixbackend.partitioner.moves import Mover
from mixbackend.partitioner.plan_to_placement import placement_of_plan
from mixbackend.partitioner.single import labels_on

common = settings(derandomize=True, deadline=None, max_examples=draws(10, 60))
seeds = st.integers(0, 10_000)


def moves_of(case: Case) -> list[dict[int, int]]:
    """Every region, what can go of it, and every atom, to every other backend."""
    slots = range(len(case.backends))
    pieces = [[atom for atom, home in enumerate(case.placement.regions) if home == region] for region in range(99)]
    pieces = [piece for piece in pieces if piece] + [[atom] for atom in range(case.problem.size)]
    wanted = [
        labels_on(case.problem, atoms, slot)
        for atoms in pieces
        for slot in slots
        if case.backend(atoms[0], case.placement) != slot
    ]
    return [labels for labels in wanted if labels]


@common
@given(seeds, st.integers(1, 40))
def test_a_plan_comes_back_from_its_names(seed: int, most: int) -> None:
    case = random_priced(seed, most)
    assert assemble(case.problem, case.placement, (), case.rules).regions == case.plan.regions
    assert problems_of(case.problem, case.placement) == []


@common
@given(seeds, st.integers(1, 25))
def test_the_price_of_a_move_is_the_difference_of_two_legal_plans(seed: int, most: int) -> None:
    case = random_priced(seed, most)
    mover = Mover(case.problem, case.placement, case.rules)
    assert mover.seconds == pytest.approx(case.plan.estimated_s)
    for wanted in moves_of(case):
        move = mover.move(wanted)
        assert move.placement is not None and move.change_s is not None
        assert problems_of(case.problem, move.placement) == []
        after = true_energy(case.problem, move.placement, case.rules.price)
        assert move.change_s == pytest.approx(after - mover.seconds, abs=1e-9)
        expected = [wanted.get(atom, label) for atom, label in enumerate(case.placement.labels)]
        assert list(move.placement.labels) == expected


def test_moves_against_brute_force() -> None:
    """Never understated, and nearly always the least."""
    exact = tried = 0
    for seed in range(120):
        case = random_priced(seed, most=6)
        mover = Mover(case.problem, case.placement, case.rules)
        for wanted in moves_of(case):
            change, least = mover.move(wanted).change_s, least_after(case, wanted) - mover.seconds
            assert change is not None and change >= least - 1e-9, (seed, wanted)
            tried, exact = tried + 1, exact + (change <= least + 1e-9)
    assert tried > 300 and exact >= 0.98 * tried, (exact, tried)


@pytest.mark.parametrize("block", range(3))
def test_no_move_from_an_optimal_plan_saves_anything(block: int) -> None:
    proved = 0
    for seed in range(30 * block, 30 * block + 30):
        case = random_priced(seed)
        mover = Mover(case.problem, case.placement, case.rules)
        changes = [mover.move(wanted).change_s or 0.0 for wanted in moves_of(case)]
        proved += case.plan.optimal
        assert not case.plan.optimal or min(changes, default=0.0) >= -1e-9
    assert proved > 20


PAIR = Pattern("pair", Op((POINTWISE,), (Op((MATMUL,), (Any("x"), Any("w"))),)), cost=lambda match: 0.0)
FREE = TableCosts(0, entries={"fast": 0.5, "eager": 0.5}, reads=0.0, writes=0.0, crossings=0.0)
THREE = graph(
    [node("a", MATMUL, "x0", "w0"), node("b", POINTWISE, "a"), node("c", MATMUL, "b", "w0")],
    ["c"],
)


def label_on(case: Case, atom: int, backend: str) -> dict[int, int]:
    label = case.problem.plain(atom, case.problem.backends.index(backend))
    assert label is not None
    return {atom: label}


def test_a_match_that_loses_an_op_is_dissolved() -> None:
    case = priced(THREE, [TableBackend("fast", costs={"": 0.3}, claims=(PAIR,)), eager(costs={"": 1.0})], FREE)
    assert [names for region in case.plan.regions for _, names in region.matches] == [("a", "b")]
    move = Mover(case.problem, case.placement, case.rules).move(label_on(case, 1, "eager"))
    assert move.placement is not None and problems_of(case.problem, move.placement) == []
    # The match was free: now a costs 0.3 and b 1.0, and two regions more are entered.
    assert move.change_s == pytest.approx(0.3 + 1.0 + 2 * 0.5)


def test_a_match_whose_ops_nobody_can_run_alone_cannot_be_dissolved() -> None:
    only_matched = TableBackend("fast", refused=frozenset({"a"}), costs={"": 0.3}, claims=(PAIR,))
    case = priced(THREE, [only_matched, eager(costs={"": 1.0})], FREE)
    move = Mover(case.problem, case.placement, case.rules).move(label_on(case, 1, "eager"))
    assert move.change_s is None and move.placement is None and move.refusal is None


def test_a_rest_that_its_backend_finds_too_small_is_a_refusal() -> None:
    picky = TableBackend("fast", costs={"": 0.1}, wanted=RegionConditions(minimum_ops=2))
    case = priced(THREE, [picky, eager(costs={"": 1.0})], FREE)
    mover = Mover(case.problem, case.placement, case.rules)
    middle = mover.move(label_on(case, 1, "eager"))
    assert middle.change_s is None and middle.refusal is not None
    assert (middle.refusal[1], middle.refusal[2].code) == (0, "region-too-small")
    last = mover.move(label_on(case, 2, "eager"))
    assert last.change_s == pytest.approx(0.9 + 0.5)


def test_a_region_that_must_stay_convex_is_cut_where_the_moved_op_demands_it() -> None:
    nodes = [node("a", POINTWISE, "x0"), node("b", MATMUL, "a", "w0"), node("c", BINARY, "a", "b")]
    case = priced(graph(nodes, ["c"]), [TableBackend("fast", costs={"": 0.1}), eager(costs={"": 1.0})], FREE)
    move = Mover(case.problem, case.placement, case.rules).move(label_on(case, 1, "eager"))
    assert move.placement is not None and len(set(move.placement.regions)) == 3
    assert move.change_s == pytest.approx(0.9 + 2 * 0.5)


def test_a_backend_that_prices_whole_regions_is_believed() -> None:
    class Knowing(TableBackend):
        def region_cost(self, sketch: RegionSketch) -> float | None:
            return 0.02 * len(sketch.views)

    case = priced(THREE, [Knowing("fast", costs={"": 0.1}), eager(costs={"": 1.0})], FREE)
    assert case.plan.estimated_s == pytest.approx(0.06)
    move = Mover(case.problem, case.placement, case.rules).move(label_on(case, 2, "eager"))
    assert move.change_s == pytest.approx(0.04 + 1.0 + 0.5 - 0.06)


def test_a_plan_that_the_backends_of_now_cannot_run_has_no_placement() -> None:
    backends = [TableBackend("fast", costs={"": 0.1}), eager(costs={"": 1.0})]
    plan = place(THREE, backends, FREE)
    refusing = TableBackend("fast", refused=frozenset({"b"}), costs={"": 0.1})
    with pytest.raises(PlacementError, match="fast no longer takes %b"):
        priced(THREE, [refusing, backends[1]], FREE, plan)
    matched = place(THREE, [TableBackend("fast", costs={"": 0.3}, claims=(PAIR,)), backends[1]], FREE)
    with pytest.raises(PlacementError, match="no longer takes a b as pair"):
        placement_of_plan(priced(THREE, backends, FREE).problem, matched)
