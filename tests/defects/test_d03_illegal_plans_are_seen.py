"""D3: copies of what may run once only, matches outside their region and regions of one name make a plan illegal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from partitioner_cases import BINARY, MATMUL, POINTWISE, TableBackend, TableCosts, eager, graph, node, random_case

from mixbackend.contracts import (
    Any,
    Op,
    OpTag,
    Pattern,
    PlacementError,
    PlannedRegion,
    check_plan,
    find_problems,
    taking_effects,
)
from mixbackend.partitioner import place

ONCE = (OpTag.RANDOM, OpTag.MUTATES, OpTag.COLLECTIVE, OpTag.EFFECT, OpTag.HIGHER_ORDER, OpTag.DATA_DEPENDENT)


def region(
    name: str, *nodes: str, copies: tuple[str, ...] = (), matches: tuple[tuple[str, ...], ...] = ()
) -> PlannedRegion:
    return PlannedRegion(name, "b", nodes, copies, tuple(("pair", match) for match in matches))


CHAIN = graph(
    [
        node("t", "aten.t.default", "w0", tags=(OpTag.VIEW,)),
        node("one", "aten.full.default"),
        node("a", MATMUL, "x0", "t"),
        node("b", POINTWISE, "a"),
        node("c", BINARY, "b", "one"),
    ],
    ["c"],
)
LEGAL = [region("r0", "t", "one", "a"), region("r1", "b", "c", copies=("one",), matches=(("b", "c"),))]


def test_the_plan_itself_is_legal() -> None:
    assert find_problems(CHAIN, LEGAL, ()) == []
    matched = [LEGAL[0], region("r1", "b", "c", copies=("one",), matches=(("one", "c"),))]
    assert find_problems(CHAIN, matched, ()) == []


@pytest.mark.parametrize("tag", ONCE, ids=str)
def test_what_runs_once_is_not_copied(tag: OpTag) -> None:
    nodes = [node("a", "aten.thing.default", "x0", tags=(tag, OpTag.VIEW)), node("b", POINTWISE, "a")]
    (problem,) = find_problems(graph(nodes, ["a", "b"]), [region("r0", "a"), region("r1", "b", copies=("a",))], ())
    assert "r1 copies %a" in problem and "aten.thing.default" in problem


@pytest.mark.parametrize(
    ("regions", "said"),
    [
        ([LEGAL[0], region("r1", "b", "c", copies=("a",))], "r1 copies %a (aten.mm.default), which computes"),
        ([LEGAL[0], region("r0", "b", "c", copies=("one",))], "two regions are called r0"),
        ([LEGAL[0], region("r1", "b", "c", matches=(("a", "b"),))], "r1 matches pair on %a, which is not in it"),
        ([LEGAL[0], region("r1", "b", "c", matches=((),))], "r1 matches pair on no node"),
        ([LEGAL[0], region("r1", "b", "c", matches=(("b", "c"), ("b",)))], "%b is in two matches of r1"),
        ([LEGAL[0], region("r1", "b", "c", copies=("one", "one"))], "r1 copies %one twice"),
        ([LEGAL[0], region("r1", "b", "c", copies=("b",))], "r1 copies %b, which it owns"),
        (
            [LEGAL[0], region("r1", "b", "c", matches=(("nothing",),))],
            "r1 names nodes that are not in the graph: nothing",
        ),
    ],
    ids=["computes", "names", "outside", "empty", "twice matched", "twice copied", "own copy", "unknown"],
)
def test_problems_are_named(regions: list[PlannedRegion], said: str) -> None:
    assert any(said in problem for problem in find_problems(CHAIN, regions, ())), find_problems(CHAIN, regions, ())


def test_the_planner_makes_none_of_these() -> None:
    pair = Pattern("pair", Op((POINTWISE, BINARY), (Op((MATMUL,), (Any("x"), Any("y"))),)), cost=lambda match: 0.0)
    for seed in range(30):
        op_graph, backends, costs = random_case(seed, most=10)
        backends[0].claims = (pair,)
        plan = place(op_graph, backends, costs)
        assert find_problems(op_graph, plan.regions, taking_effects(backends)) == []


def test_a_plan_with_a_match_elsewhere_does_not_pass() -> None:
    costs = TableCosts(0, {"fast": 0.0, "eager": 0.0})
    plan = place(CHAIN, [TableBackend("fast"), eager()], costs)
    first, *rest = plan.regions
    moved = replace(plan, regions=(replace(first, matches=(("pair", ("nowhere",)),)), *rest))
    with pytest.raises(PlacementError, match="not legal"):
        check_plan(CHAIN, moved, ())
