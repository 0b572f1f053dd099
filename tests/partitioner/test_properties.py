"""What holds for every plan, on random graphs with random verdicts and costs."""

from __future__ import annotations

import random
from itertools import pairwise

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st
from partitioner_cases import TableBackend, TableCosts, eager, random_case
from tiers import draws

from mixbackend.contracts import (
    OpGraph,
    Plan,
    RegionConditions,
    check_plan,
    dependencies,
    find_problems,
    taking_effects,
)
from mixbackend.partitioner import place
from mixbackend.partitioner.cycles import shape_of
from mixbackend.partitioner.elimination import min_degree_order
from mixbackend.partitioner.energy import true_energy
from mixbackend.partitioner.placement import make_problem
from mixbackend.partitioner.regions import form_regions
from mixbackend.partitioner.step_clock import StepClock

common = settings(derandomize=True, deadline=None, max_examples=draws(21, 60))
seeds = st.integers(0, 10_000)
sizes = st.integers(1, 40)


@common
@given(seeds, sizes)
def test_every_node_has_one_owner_that_can_run_it_and_the_quotient_has_no_cycle(seed: int, most: int) -> None:
    op_graph, backends, costs = random_case(seed, most)
    plan = place(op_graph, backends, costs)
    assert find_problems(op_graph, plan.regions, taking_effects(backends)) == []
    refused = {(refusal.node, refusal.backend) for refusal in plan.refusals}
    for region in plan.regions:
        assert not {(name, region.backend) for name in (*region.nodes, *region.copies)} & refused


@common
@given(seeds, sizes)
def test_equal_input_gives_an_equal_plan(seed: int, most: int) -> None:
    first, second = (place(*random_case(seed, most)) for _ in range(2))
    assert first == second and hash(first) == hash(second) and str(first) == str(second)


@common
@given(seeds, sizes)
def test_no_single_backend_and_no_fallback_is_cheaper(seed: int, most: int) -> None:
    op_graph, backends, costs = random_case(seed, most)
    plan = place(op_graph, backends, costs)
    problem = make_problem(op_graph, backends, costs, (), frozenset(), {}, StepClock())
    last = len(backends) - 1
    labels = [label for atom in range(problem.size) if (label := problem.plain(atom, last)) is not None]
    alone = true_energy(problem, form_regions(problem, labels))
    assert plan.estimated_s <= alone + 1e-9
    assert dict(plan.single_backend_s)["eager"] == alone
    assert all(plan.estimated_s <= seconds + 1e-9 for _, seconds in plan.single_backend_s)
    assert plan.lower_bound_s <= plan.estimated_s + 1e-9


@common
@given(seeds, sizes, st.integers(2, 4), st.sampled_from([frozenset(), frozenset({"matmul"})]))
def test_conditions_on_regions_are_kept(seed: int, most: int, minimum: int, must: frozenset[str]) -> None:
    op_graph, backends, costs = random_case(seed, most)
    backends[0].wanted = RegionConditions(minimum_ops=minimum, must_contain=must)
    plan = place(op_graph, backends, costs)
    check_plan(op_graph, plan, taking_effects(backends))
    for region in plan.regions:
        if region.backend == backends[0].name:
            ops = [op_graph.node_by_name[name].op for name in region.nodes]
            assert sum(op != "aten.view.default" for op in ops) >= minimum
            assert not must or "aten.mm.default" in ops


def run_in_order(op_graph: OpGraph, plan: Plan, order: list[str]) -> list[str]:
    """Node names in the order in which a legal permutation of regions runs them; fails where a value is missing."""
    regions = {region.id: region for region in plan.regions}
    done = {item.name for item in op_graph.inputs}
    trace: list[str] = []
    for identity in order:
        here: set[str] = set()
        region = regions[identity]
        wanted = {*region.nodes, *region.copies}
        for item in op_graph.placed_nodes:
            if item.name not in wanted:
                continue
            assert all(name in done or name in here for name in item.references())
            here.add(item.name)
            trace += [item.name] if item.name in region.nodes else []
        done |= here
    return trace


@common
@given(seeds, sizes, seeds)
def test_any_legal_order_of_regions_keeps_all_dependencies(seed: int, most: int, shuffle: int) -> None:
    op_graph, backends, costs = random_case(seed, most)
    plan = place(op_graph, backends, costs)
    homes: dict[str, set[str]] = {}
    for region in plan.regions:
        for name in (*region.nodes, *region.copies):
            homes.setdefault(name, set()).add(region.id)
    owner = {name: region.id for region in plan.regions for name in region.nodes}
    quotient = nx.DiGraph()
    quotient.add_nodes_from(region.id for region in plan.regions)
    for earlier, later in dependencies(op_graph):
        quotient.add_edges_from((owner[earlier], home) for home in homes[later] if home not in homes[earlier])
    draw = random.Random(shuffle)
    rank = {identity: draw.random() for identity in quotient}
    order = list(nx.lexicographical_topological_sort(quotient, key=rank.__getitem__))
    trace = run_in_order(op_graph, plan, order)
    position = {name: index for index, name in enumerate(trace)}
    assert sorted(trace) == sorted(item.name for item in op_graph.placed_nodes)
    assert all(position[first] < position[second] for first, second in op_graph.effects)


@common
@given(seeds, sizes)
def test_the_elimination_order_is_as_narrow_as_networkx_finds(seed: int, most: int) -> None:
    op_graph, backends, costs = random_case(seed, most)
    problem = make_problem(op_graph, backends, costs, (), frozenset(), {}, StepClock())
    links = nx.Graph(problem.links)
    links.add_nodes_from(range(problem.size))
    order = min_degree_order([2] * problem.size, problem.links)
    assert sorted(order.variables) == list(range(problem.size))
    assert order.width <= nx.algorithms.approximation.treewidth_min_degree(links)[0] + 1


@common
@given(seeds, sizes)
def test_detours_cycles_and_bundles_are_what_they_say(seed: int, most: int) -> None:
    op_graph, backends, costs = random_case(seed, most)
    problem = make_problem(op_graph, backends, costs, (), frozenset(), {}, StepClock())
    shape, links = shape_of(problem.size, problem.links), set(problem.links)
    for (first, last), path in shape.detours.items():
        assert (first, last) == (path[0], path[-1]) and len(path) > 2
        assert set(pairwise(path)) <= links
    direct = links - set(shape.detours)
    for path in (path for paths in shape.bundles for path in paths):
        assert set(pairwise(path)) <= direct
    count = len(shape.cycles) + sum(len(paths) - 1 for paths in shape.bundles)
    kept = nx.Graph(direct)
    kept.add_nodes_from(range(problem.size))
    assert count <= len(direct) - problem.size + nx.number_connected_components(kept)


@common
@given(seeds, sizes)
def test_pins_are_kept_and_quarantined_pairs_avoided(seed: int, most: int) -> None:
    op_graph, backends, costs = random_case(seed, most)
    plan = place(op_graph, backends, costs)
    owner = {name: region.backend for region in plan.regions for name in region.nodes}
    banned = sorted(name for name, backend in owner.items() if backend != "eager")[:1]
    exclusions = frozenset((name, owner[name]) for name in banned)
    computed = {
        item.name for item in op_graph.placed_nodes if item.op not in ("aten.view.default", "aten.full.default")
    }
    pins = {name: backend for name, backend in owner.items() if name in computed and name not in banned}
    again = place(op_graph, backends, costs, exclusions=exclusions, pinned=pins)
    moved = {name: region.backend for region in again.regions for name in region.nodes}
    assert all(moved[name] == backend for name, backend in pins.items())
    assert all(moved[name] != backend for name, backend in exclusions)


def test_wide_graphs_fall_back_with_a_bound_and_a_legal_plan() -> None:
    from partitioner_cases import graph, node

    nodes = []
    for i in range(26):
        sources = [f"n{j}" for j in range(i)] or ["x0"]
        nodes.append(node(f"n{i}", "aten.cat.default", *sources, module_class=f"C{i}"))
    backends = [*(TableBackend(f"b{slot}") for slot in range(4)), eager()]
    plan = place(graph(nodes, ["n25"]), backends, TableCosts(5))
    assert plan.search == "expansion" and plan.width == 0
    assert 0.0 < plan.lower_bound_s <= plan.estimated_s
    assert all(plan.estimated_s <= seconds + 1e-9 for _, seconds in plan.single_backend_s)
