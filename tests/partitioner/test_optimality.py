"""The search against brute force over all legal plans."""

from __future__ import annotations

import pytest
from brute_force import least_energy
from partitioner_cases import TableBackend, TableCosts, eager, graph, node, random_case
from tiers import draws

from mixbackend.contracts import OpGraph, Plan, Traits
from mixbackend.partitioner import place
from mixbackend.partitioner.placement import make_problem
from mixbackend.partitioner.problem import Problem
from mixbackend.partitioner.step_clock import StepClock


def problem_of(op_graph: OpGraph, backends: list[TableBackend], costs: TableCosts) -> Problem:
    return make_problem(op_graph, backends, costs, (), frozenset(), {}, StepClock())


def check_against_brute_force(op_graph: OpGraph, backends: list[TableBackend], costs: TableCosts) -> Plan:
    plan = place(op_graph, backends, costs)
    least = least_energy(problem_of(op_graph, backends, costs))
    assert plan.lower_bound_s <= least + 1e-9
    assert least <= plan.estimated_s + 1e-9
    if plan.optimal:
        assert plan.estimated_s == pytest.approx(least, abs=1e-9)
    return plan


@pytest.mark.sampled(1)
@pytest.mark.parametrize("block", range(8))
def test_two_hundred_random_graphs_of_up_to_twelve_nodes(block: int) -> None:
    plans = []
    for seed in range(25 * block, 25 * block + draws(10, 25)):
        op_graph, backends, costs = random_case(seed, most=12, backends=3 if seed % 2 else 2)
        plans.append(check_against_brute_force(op_graph, backends, costs))
    assert sum(plan.optimal for plan in plans) >= 0.88 * len(plans)
    assert len({len(plan.regions) for plan in plans}) > 2


def test_small_graphs_on_four_backends() -> None:
    plans = [
        check_against_brute_force(*random_case(seed, most=7, backends=4)) for seed in range(1000, 1000 + draws(12, 40))
    ]
    assert sum(plan.optimal for plan in plans) >= 0.9 * len(plans)


def chain(length: int) -> OpGraph:
    ops = ["aten.relu.default", "aten.mm.default", "aten._softmax.default"]
    nodes = [node(f"n{i}", ops[i % 3], f"n{i - 1}" if i else "x0", "w0", module_class=f"C{i}") for i in range(length)]
    return graph(nodes, [f"n{length - 1}"])


@pytest.mark.parametrize("seed", range(10))
def test_chains_are_always_solved_to_optimality(seed: int) -> None:
    fused = frozenset({("pointwise", "matmul"), ("matmul", "softmax")})
    backends = [TableBackend("one", declared=Traits(fused=fused)), TableBackend("two"), eager()]
    assert place(chain(60), backends, TableCosts(seed)).optimal


def residual_tower(layers: int) -> OpGraph:
    """Blocks with three parallel branches and a residual, all of whose layers also read one shared mask."""
    nodes = [node("mask", "aten.relu.default", "x1", module_class="mask")]
    last = "x0"
    for i in range(layers):
        nodes.append(node(f"norm{i}", "aten.native_layer_norm.default", last, module_class="norm"))
        branches = [f"{name}{i}" for name in "qkv"]
        nodes += [node(name, "aten.mm.default", f"norm{i}", "w0", module_class="mm") for name in branches]
        nodes.append(node(f"mixed{i}", "aten.bmm.default", *branches, "mask", module_class="mix"))
        nodes.append(node(f"sum{i}", "aten.add.Tensor", f"mixed{i}", last, module_class="sum"))
        last = f"sum{i}"
    return graph(nodes, [last], inputs=2)


def test_one_backend_that_is_best_everywhere_takes_all_and_that_is_proved() -> None:
    fused = frozenset({("normalization", "matmul"), ("matmul", "pointwise"), ("pointwise", "pointwise")})
    fast = TableBackend("fast", declared=Traits(fused=fused))
    classes = ("mask", "norm", "mm", "mix", "sum")
    ops = {(name, kind): 1.0 if name == "fast" else 2.0 for name in ("fast", "slow", "eager") for kind in classes}
    entries = {"fast": 3.0, "slow": 0.5, "eager": 0.5}
    costs = TableCosts(7, entries=entries, ops=ops, reads=0.0, writes=0.1, crossings=0.1)
    plan = place(residual_tower(12), [fast, TableBackend("slow"), eager()], costs)
    assert plan.optimal
    assert [region.backend for region in plan.regions] == ["fast"]


def test_a_plan_that_must_be_split_to_stay_convex_is_split_and_priced() -> None:
    nodes = [
        node("a", "aten.relu.default", "x0", module_class="a"),
        node("b", "aten.mm.default", "a", "w0", module_class="b"),
        node("c", "aten.add.Tensor", "a", "b", module_class="c"),
    ]
    ops = {("fast", "a"): 0.0, ("fast", "c"): 0.0, ("eager", "a"): 50.0, ("eager", "c"): 50.0, ("eager", "b"): 1.0}
    costs = TableCosts(1, entries={"fast": 2.0, "eager": 1.0}, ops=ops)
    plan = check_against_brute_force(
        graph(nodes, ["c"]), [TableBackend("fast", refused=frozenset({"b"})), eager()], costs
    )
    assert [region.backend for region in plan.regions] == ["fast", "eager", "fast"]
    assert plan.optimal
