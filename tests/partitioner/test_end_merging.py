"""What stands alone at either end of a graph becomes one region of a backend that starts many ops at once, on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from partitioner_cases import MATMUL, TableBackend, TableCosts, eager

from mixbackend.contracts import (
    GraphInput,
    InputRole,
    NodeRef,
    OpGraph,
    OpNode,
    Plan,
    RegionConditions,
    TensorMeta,
    Traits,
    find_problems,
    taking_effects,
)
from mixbackend.partitioner import place

CONVERSION = "aten._to_copy.default"
SUM = "aten.sum.default"
LARGE = 1 << 20
COSTS = TableCosts(0, entries=dict.fromkeys(("gatherer", "other", "eager"), 1.0), reads=0.0, writes=0.0, crossings=0.0)


def meta(dtype: torch.dtype, size: int, device: str) -> TensorMeta:
    return TensorMeta((size,), (1,), dtype, torch.device(device, 0) if device == "cuda" else torch.device(device))


def made(name: str, op: str, *sources: str, dtype: torch.dtype = torch.bfloat16, size: int = LARGE) -> OpNode:
    arguments = tuple((f"arg{place}", NodeRef(source)) for place, source in enumerate(sources))
    return OpNode(name, op, arguments, (meta(dtype, size, "cuda"),), module_class=op)


def graph(nodes: Sequence[OpNode], outputs: Sequence[str], inputs: int = 4, device: str = "cuda") -> OpGraph:
    """Of weights ``w0``, ``w1``... in float32."""
    weights = tuple(
        GraphInput(f"w{place}", meta(torch.float32, LARGE, device), InputRole.PARAMETER) for place in range(inputs)
    )
    there = torch.device(device, 0) if device == "cuda" else torch.device(device)
    moved = tuple(
        replace(node, outputs=tuple(replace(item, device=there) for item in node.outputs))  # type: ignore[type-var]
        for node in nodes
    )
    return OpGraph("forward-0", "forward", weights, moved, tuple(outputs))


def gatherer(**more: object) -> TableBackend:
    """It starts many ops at once, and runs no product."""
    traits = Traits(device_types=frozenset({"cpu", "cuda"}), gathers=True)
    return TableBackend("gatherer", frozenset({MATMUL}), {CONVERSION: 1.2, SUM: 1.2}, traits, **more)  # type: ignore[arg-type]


def other(**more: object) -> TableBackend:
    """It is a little quicker, as models have it, at everything."""
    fused = more.pop("fused", frozenset())
    traits = Traits(device_types=frozenset({"cpu", "cuda"}), fused=fused)  # type: ignore[arg-type]
    return TableBackend("other", frozenset(), {CONVERSION: 1.0, MATMUL: 1.0, SUM: 5.0}, traits, **more)  # type: ignore[arg-type]


def placed(whole: OpGraph, *backends: TableBackend) -> Plan:
    fallback = eager(costs={CONVERSION: 9.0, MATMUL: 9.0, SUM: 9.0})
    fallback = replace(fallback, declared=replace(fallback.declared, device_types=frozenset({"cpu", "cuda"})))
    plan = place(whole, [*backends, fallback], COSTS)
    assert find_problems(whole, plan.regions, taking_effects([*backends, fallback])) == []
    assert plan.lower_bound_s <= plan.estimated_s
    # A plan is not worse by its own estimate than a backend alone.
    assert all(plan.estimated_s <= seconds for _, seconds in plan.single_backend_s)
    return plan


def regions(plan: Plan) -> list[tuple[str, list[str]]]:
    return [(region.backend, sorted(region.nodes)) for region in plan.regions]


FORWARD = [
    *(made(f"c{place}", CONVERSION, f"w{place}") for place in range(3)),
    made("m0", MATMUL, "c0", "c1"),
    made("m1", MATMUL, "m0", "c2"),
]
BACKWARD = [
    made("m0", MATMUL, "w0", "w1"),
    made("m1", MATMUL, "m0", "w2"),
    made("c0", CONVERSION, "m0", dtype=torch.float32),
    made("c1", CONVERSION, "m1", dtype=torch.float32),
]


def test_conversions_of_weights_are_the_first_region() -> None:
    plan = placed(graph(FORWARD, ["m1"]), gatherer(), other())
    assert regions(plan) == [("gatherer", ["c0", "c1", "c2"]), ("other", ["m0", "m1"])]


def test_conversions_of_gradients_are_the_last_region() -> None:
    plan = placed(graph(BACKWARD, ["c0", "c1"]), gatherer(), other())
    assert regions(plan) == [("other", ["m0", "m1"]), ("gatherer", ["c0", "c1"])]


@pytest.mark.parametrize("nodes", [FORWARD, BACKWARD], ids=["first", "last"])
def test_nothing_is_gathered_on_a_processor_or_without_such_a_backend(nodes: list[OpNode]) -> None:
    outputs = [nodes[-1].name, nodes[-2].name]
    on_processor = placed(graph(nodes, outputs, device="cpu"), gatherer(), other())
    plain = replace(gatherer(), declared=Traits(device_types=frozenset({"cpu", "cuda"})))
    without = placed(graph(nodes, outputs), plain, other())
    for plan in (on_processor, without):
        assert {region.backend for region in plan.regions} == {"other"}


def test_a_conversion_that_its_owner_fuses_stays() -> None:
    fused = frozenset({("copy", "matmul")})
    plan = placed(graph(FORWARD, ["m1"]), gatherer(), other(fused=fused))
    assert regions(plan) == [("other", ["c0", "c1", "c2", "m0", "m1"])]


def test_a_region_that_its_backend_would_refuse_keeps_its_conversions() -> None:
    """Three ops are left in the chain, one in the pair."""
    apart = [made("p", MATMUL, "w3", "w3"), made("c2", CONVERSION, "p", dtype=torch.float32)]
    whole = graph([*BACKWARD, *apart], ["c0", "c1", "c2"])
    plan = placed(whole, gatherer(), other(wanted=RegionConditions(minimum_ops=2)))
    assert sorted(regions(plan)) == [
        ("gatherer", ["c0", "c1"]),
        ("other", ["c2", "p"]),
        ("other", ["m0", "m1"]),
    ]


def test_what_starting_takes_is_told_of_backends_alone() -> None:
    plan = placed(graph(FORWARD, ["m1"]), gatherer(), other())
    assert plan.estimated_s == pytest.approx(3 * 1.2 + 1.0 + 2 * 1.0 + 1.0)
    # Five ops and a region, and three starts.
    assert dict(plan.single_backend_s)["other"] == pytest.approx(5 * 1.0 + 1.0 + 3 * 1.0)
    without = placed(graph(FORWARD, ["m1"]), other())
    assert dict(without.single_backend_s)["other"] == pytest.approx(5 * 1.0 + 1.0)


def test_a_backend_alone_wins_whose_ops_start_at_once() -> None:
    """Each conversion must stay with its product, since one op would be refused."""
    pairs = [
        *(made(f"c{place}", CONVERSION, f"w{place}") for place in range(4)),
        *(made(f"m{place}", MATMUL, f"c{place}", f"c{place}") for place in range(4)),
    ]
    whole = graph(pairs, [f"m{place}" for place in range(4)])
    wanting = RegionConditions(minimum_ops=2)
    able = replace(gatherer(), refused=frozenset())
    able.costs[MATMUL] = 1.1
    plan = placed(whole, able, other(wanted=wanting))
    assert {backend for backend, _ in regions(plan)} == {"gatherer"}


def test_dear_conversions_stay_where_they_are() -> None:
    dear = gatherer()
    dear.costs[CONVERSION] = 2.5
    plan = placed(graph(FORWARD, ["m1"]), dear, other())
    assert {region.backend for region in plan.regions} == {"other"}


def test_regions_that_would_hold_memory_stay_apart() -> None:
    """Each reads what lives long if they wait for each other, and makes little."""
    sums = [made(f"s{place}", SUM, f"m{place}", dtype=torch.float32, size=1) for place in range(2)]
    plan = placed(graph([*BACKWARD[:2], *sums], ["s0", "s1"]), gatherer(), other())
    assert [item for item in regions(plan) if item[0] == "gatherer"] == [("gatherer", ["s0"]), ("gatherer", ["s1"])]


def test_small_ends_are_one_region() -> None:
    """As counters and statistics of batch norms."""
    small = [made(f"s{place}", SUM, f"v{place}", dtype=torch.float32, size=8) for place in range(3)]
    vectors = [GraphInput(f"v{place}", meta(torch.float32, 8, "cuda"), InputRole.BUFFER) for place in range(3)]
    whole = graph([*BACKWARD[:2], *small], ["m1", "s0", "s1", "s2"])
    whole = replace(whole, inputs=(*whole.inputs, *vectors))
    plan = placed(whole, gatherer(), other())
    assert ("gatherer", ["s0", "s1", "s2"]) in regions(plan)


@pytest.mark.parametrize("mixes", [False, True])
def test_ops_of_the_processor_stay_apart_from_those_of_a_gpu(mixes: bool) -> None:
    """A scale that is computed on the processor stands alone at the start, as conversions of weights do."""
    whole = graph([*FORWARD, made("s0", CONVERSION, "w3"), made("s1", CONVERSION, "s0")], ["m1", "s1"])
    on_processor = torch.device("cpu")

    def moved(meta: TensorMeta) -> TensorMeta:
        return replace(meta, device=on_processor)

    nodes = tuple(
        replace(node, outputs=tuple(map(moved, node.outputs)))  # type: ignore[arg-type]
        if node.name.startswith("s")
        else node
        for node in whole.nodes
    )
    inputs = tuple(replace(item, meta=moved(item.meta)) if item.name == "w3" else item for item in whole.inputs)  # type: ignore[arg-type]
    whole = replace(whole, nodes=nodes, inputs=inputs)
    backend = gatherer()
    backend = replace(backend, declared=replace(backend.declared, mixes_devices=mixes))
    plan = placed(whole, backend, other())
    devices = [
        (region.backend, {meta.device.type for name in region.nodes for meta in whole.node_by_name[name].outputs})  # type: ignore[union-attr]
        for region in plan.regions
    ]
    together = [owner for owner, kinds in devices if len(kinds) > 1]
    assert together == (["gatherer"] if mixes else [])
