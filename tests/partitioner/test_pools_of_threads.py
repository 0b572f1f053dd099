"""Going from one pool of threads to another costs seconds per region, in plans that mix pools and in no others."""

from __future__ import annotations

import pytest
from partitioner_cases import MATMUL, POINTWISE, SOFTMAX, TableBackend, TableCosts, eager, graph, node

from mixbackend.contracts import OpGraph, Plan, Traits
from mixbackend.partitioner.placement import place
from mixbackend.partitioner.reprice import reprice

SWITCH = 5.0


def chain() -> OpGraph:
    nodes = [
        node("a", MATMUL, "x0", "w0", module_class="M0"),
        node("b", POINTWISE, "a", module_class="P"),
        node("c", SOFTMAX, "b", module_class="S"),
        node("d", MATMUL, "c", "w0", module_class="M1"),
    ]
    return graph(nodes, ["d"])


def foreign(**more: object) -> TableBackend:
    return TableBackend("foreign", declared=Traits(thread_pool="own"), **more)  # type: ignore[arg-type]


def costs(switch: float = SWITCH, **seconds: float) -> TableCosts:
    """Each op takes one second on the foreign backend, and on eager what is said."""
    ops = {("foreign", name): 1.0 for name in ("M0", "P", "S", "M1")}
    ops |= {("eager", name): seconds.get(name, 3.0) for name in ("M0", "P", "S", "M1")}
    free = {"foreign": 0.5, "eager": 0.5}
    return TableCosts(0, free, {"foreign": switch}, ops, reads=0.0, writes=0.0, crossings=0.0)


def placed(backend: TableBackend, table: TableCosts) -> Plan:
    return place(chain(), [backend, eager()], table)


def owners(plan: Plan) -> list[str]:
    return [region.backend for region in plan.regions]


def test_one_pool_pays_nothing() -> None:
    plan = placed(foreign(), costs())
    assert owners(plan) == ["foreign"]
    assert plan.estimated_s == pytest.approx(4.5) and plan.optimal


def test_each_region_beside_another_pool_pays() -> None:
    plan = placed(foreign(refused=frozenset({SOFTMAX})), costs(switch=1.0))
    assert owners(plan) == ["foreign", "eager", "foreign"]
    assert plan.estimated_s == pytest.approx(1.0 + 1.0 + 3.0 + 1.0 + 3 * 0.5 + 2 * 1.0)
    assert [region.estimated_s for region in plan.regions] == pytest.approx([3.5, 3.5, 2.5])


def test_what_looks_cheaper_op_by_op_is_not_worth_the_switches() -> None:
    refusing = foreign(refused=frozenset({SOFTMAX}))
    assert set(owners(placed(refusing, costs()))) == {"eager"}
    assert len(owners(placed(refusing, costs(switch=0.0)))) == 3


def test_staying_beats_a_quicker_op_elsewhere() -> None:
    """The op alone would be worth its region; with the switches that it brings, it is not."""
    table = costs(S=0.0)
    assert owners(placed(foreign(), table)) == ["foreign"]
    assert len(owners(placed(foreign(), costs(switch=0.0, S=0.0, P=0.0)))) == 3


def test_plans_are_appraised_as_they_were_placed() -> None:
    table = costs(switch=1.0)
    for backend in (foreign(), foreign(refused=frozenset({SOFTMAX}))):
        plan = placed(backend, table)
        found = reprice(chain(), [plan], [backend, eager()], table, bounded=True)
        assert found.seconds == (pytest.approx(plan.estimated_s),)
        assert found.bound_s <= plan.estimated_s + 1e-9
