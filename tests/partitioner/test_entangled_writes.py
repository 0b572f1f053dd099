"""No region of a backend without effects writes into storage that several of its inputs share."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from partitioner_cases import BINARY, POINTWISE, TableBackend, TableCosts, eager, graph, node

from mixbackend.contracts import (
    COPY_INTO,
    OpGraph,
    OpNode,
    OpTag,
    PlacementError,
    PlannedRegion,
    Traits,
    check_plan,
    entangled_writes,
    find_problems,
    taking_effects,
)
from mixbackend.partitioner import conditions, place
from mixbackend.partitioner.plan_canonical import canonical_plan
from mixbackend.partitioner.plan_revalidation import MisfitError, revalidated_plan

CASES = 120
VIEW = "aten.select.int"
COSTS = TableCosts(
    0, {"fast": 1.0, "eager": 1.0}, {}, {("fast", ""): 1.0, ("eager", ""): 9.0}, reads=0.1, writes=0.1, crossings=0.1
)


def view(name: str, source: str) -> OpNode:
    return node(name, VIEW, source, tags=(OpTag.VIEW,))


def write(name: str, target: str, value: str) -> OpNode:
    return node(name, COPY_INTO, target, value, tags=(OpTag.MUTATES,))


def ordered(nodes: list[OpNode], outputs: list[str]) -> OpGraph:
    """With effect edges as described graphs have them: reads of a storage and writes into it keep their order."""
    plain = graph(nodes, outputs, inputs=3)
    storage, effects = plain.storage_of, []
    for later, second in enumerate(nodes):
        for first in nodes[:later]:
            if OpTag.MUTATES in first.tags or OpTag.MUTATES in second.tags:
                one, other = ({storage.get(name, name) for name in item.references()} for item in (first, second))
                effects += [(first.name, second.name)] if one & other else []
    return replace(plain, effects=tuple(effects))


ENTANGLED = [view("v", "x0"), node("n", BINARY, "x0", "x1"), write("w", "x0", "n"), node("m", BINARY, "v", "n")]
"""The view is read after the storage was written."""


def fast(**more: object) -> TableBackend:
    return TableBackend("fast", declared=Traits(writes_inputs=True), **more)  # type: ignore[arg-type]


def test_a_view_from_outside_and_its_storage_are_two_inputs() -> None:
    op_graph = ordered(ENTANGLED, ["m"])
    assert entangled_writes(op_graph, ("n", "w", "m")) == ("w",)
    assert entangled_writes(op_graph, ("v", "n", "w", "m")) == (), "the region makes the view itself"
    assert entangled_writes(op_graph, ("n", "m")) == (), "it only reads"
    assert entangled_writes(op_graph, ("w",)) == ()


def test_such_a_region_is_illegal_where_effects_are_not_taken() -> None:
    op_graph = ordered(ENTANGLED, ["m"])
    regions = [PlannedRegion("r0", "eager", ("v",)), PlannedRegion("r1", "fast", ("n", "w", "m"))]
    (problem,) = find_problems(op_graph, regions, ("eager",))
    assert problem == "r1 writes by %w into storage that several of its inputs share"
    assert find_problems(op_graph, regions, ("eager", "fast")) == []


@pytest.mark.parametrize("single", [None, "fast"])
def test_only_what_writes_is_taken_out(single: str | None) -> None:
    plan = place(ordered(ENTANGLED, ["m"]), [fast(refused=frozenset({"v"})), eager()], COSTS, single=single)
    owner = {name: region.backend for region in plan.regions for name in region.nodes}
    assert (owner["v"], owner["n"], owner["m"]) == ("eager", "fast", "fast")
    assert not any({"w", "m"} <= set(region.nodes) for region in plan.regions)


def test_a_backend_that_makes_the_view_itself_keeps_the_write() -> None:
    plan = place(ordered(ENTANGLED, ["m"]), [fast(), eager()], COSTS)
    assert [region.backend for region in plan.regions] == ["fast"]


def test_without_a_backend_that_takes_effects_there_is_no_plan() -> None:
    backends = [fast(refused=frozenset({"v"})), replace(fast(refused=frozenset({"w"})), name="eager")]
    nodes = [view("v", "x0"), write("w", "v", "x0"), node("m", POINTWISE, "v")]
    with pytest.raises(PlacementError, match="several of its inputs share"):
        place(ordered(nodes, ["m"]), backends, COSTS)


def test_a_plan_of_before_is_held_against_it() -> None:
    op_graph, backends = ordered(ENTANGLED, ["m"]), [fast(refused=frozenset({"v"})), eager()]
    plan = place(op_graph, backends, COSTS)
    regions = (PlannedRegion("r0", "eager", ("v",)), PlannedRegion("r1", "fast", ("n", "w", "m")))
    with pytest.raises(MisfitError, match="several of its inputs share"):
        revalidated_plan(op_graph, canonical_plan(replace(plan, regions=regions), op_graph), backends)


def drawn(seed: int) -> tuple[OpGraph, list[TableBackend]]:
    """A random graph of views of inputs, writes and ops, and backends that refuse some of them."""
    source = random.Random(seed)
    nodes: list[OpNode] = []
    known = ["x0", "x0", "x1"]
    for number in range(source.randint(5, 14)):
        kind, name = source.random(), f"n{number}"
        if kind < 0.3:
            nodes.append(view(name, source.choice(known)))
        elif kind < 0.5:
            nodes.append(write(name, source.choice(known), source.choice(known)))
            continue
        else:
            nodes.append(node(name, BINARY, *source.choices(known, k=2)))
        known.append(name)
    refusals = [frozenset(item.name for item in nodes if source.random() < 0.3) for _ in range(2)]
    backends = [fast(refused=refusals[0]), replace(fast(refused=refusals[1]), name="other"), eager()]
    return ordered(nodes, known[3:] or ["x0"]), backends


def drawn_costs(seed: int) -> TableCosts:
    seconds = {("fast", ""): 1.0, ("other", ""): 2.0, ("eager", ""): 9.0}
    entries = {"fast": 1.0, "other": 1.0, "eager": 1.0}
    return TableCosts(seed, entries, {}, seconds, reads=0.1, writes=0.1, crossings=0.1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("single", [None, "fast"])
def test_no_plan_has_one(single: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(CASES):
        op_graph, backends = drawn(seed)
        plan = place(op_graph, backends, drawn_costs(seed), single=single)
        check_plan(op_graph, plan, taking_effects(backends))
    monkeypatch.setattr(conditions, "entangled_writes", lambda *_: ())
    illegal = 0
    for seed in range(CASES):
        op_graph, backends = drawn(seed)
        try:
            place(op_graph, backends, drawn_costs(seed), single=single)
        except PlacementError as error:
            assert "several of its inputs share" in str(error)
            illegal += 1
    assert illegal > CASES // 20, "graphs in which it matters"
