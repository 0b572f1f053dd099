"""D2: what reads the same large tensor in loops of one backend is one region; the bound is of connected ones."""

from __future__ import annotations

import pytest
import torch
from partitioner_cases import CPU, TableBackend, TableCosts, eager, node

from mixbackend.contracts import (
    GraphInput,
    InputRole,
    OpGraph,
    OpNode,
    Plan,
    RegionConditions,
    TensorMeta,
    Traits,
    find_problems,
)
from mixbackend.partitioner import place

FUSED = frozenset({("pointwise", "pointwise"), ("pointwise", "reduction"), ("reduction", "pointwise")})
COSTS = TableCosts(
    0, {"loops": 1.0, "eager": 1.0}, {}, {("loops", ""): 1.0, ("eager", ""): 9.0}, reads=0.0, writes=0.0, crossings=0.0
)
SUM, MEAN, AMAX, RELU = "aten.sum.default", "aten.mean.default", "aten.amax.default", "aten.relu.default"


def wide(
    nodes: list[OpNode], outputs: list[str], elements: int = 1 << 22, role: InputRole = InputRole.ACTIVATION
) -> OpGraph:
    place_of_x = GraphInput("x0", TensorMeta((elements,), (1,), torch.float32, CPU), role)
    return OpGraph("inference-0", "inference", (place_of_x,), tuple(nodes), tuple(outputs))


def loops(**more: object) -> TableBackend:
    return TableBackend("loops", declared=Traits(fused=FUSED), **more)  # type: ignore[arg-type]


def regions(plan: Plan) -> list[tuple[str, ...]]:
    return [region.nodes for region in plan.regions]


REDUCTIONS = [node("s", SUM, "x0"), node("m", MEAN, "x0"), node("a", AMAX, "x0")]


@pytest.mark.parametrize("single", [None, "loops"])
def test_reductions_of_one_large_tensor_are_one_region(single: str | None) -> None:
    op_graph = wide(REDUCTIONS, ["s", "m", "a"])
    plan = place(op_graph, [loops(), eager()], COSTS, single=single)
    assert regions(plan) == [("s", "m", "a")]
    assert plan.estimated_s == pytest.approx(4.0) and plan.lower_bound_s <= plan.estimated_s
    assert find_problems(op_graph, plan.regions, ("eager",)) == []


def test_small_tensors_and_weights_stay_apart() -> None:
    assert len(regions(place(wide(REDUCTIONS, ["s", "m", "a"], 1 << 10), [loops(), eager()], COSTS))) == 3
    weight = wide(REDUCTIONS, ["s", "m", "a"], role=InputRole.PARAMETER)
    assert len(regions(place(weight, [loops(), eager()], COSTS))) == 3


def test_who_has_no_loops_reads_it_each_time_anyway() -> None:
    plan = place(wide(REDUCTIONS, ["s", "m", "a"]), [TableBackend("loops"), eager()], COSTS)
    assert len(regions(plan)) == 3


def test_a_way_through_another_backend_keeps_them_apart() -> None:
    nodes = [node("s", SUM, "x0"), node("e", "aten.erf.default", "s"), node("b", "aten.add.Tensor", "x0", "e")]
    op_graph = wide(nodes, ["b"])
    plan = place(op_graph, [loops(refused=frozenset({"e"})), eager()], COSTS)
    assert regions(plan) == [("s",), ("e",), ("b",)]


def test_what_the_backend_refuses_stays_apart() -> None:
    class Narrow(TableBackend):
        def decline(self, sketch: object) -> object:  # type: ignore[override]
            from mixbackend.contracts import Unsupported

            return Unsupported("region-condition", "one op at a time") if len(sketch.views) > 1 else None  # type: ignore[attr-defined]

    narrow = Narrow("loops", declared=Traits(fused=FUSED), wanted=RegionConditions())
    plan = place(wide(REDUCTIONS, ["s", "m", "a"]), [narrow, eager()], COSTS)
    assert len(regions(plan)) == 3 and {region.backend for region in plan.regions} == {"loops"}
