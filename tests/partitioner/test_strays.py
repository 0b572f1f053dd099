"""What a backend finds too small by itself is run by it all the same, beside its other ops."""

from __future__ import annotations

import pytest
from partitioner_cases import BINARY, MATMUL, POINTWISE, SOFTMAX, TableBackend, TableCosts, eager, graph, node

from mixbackend.contracts import RegionConditions, RegionSketch, Unsupported
from mixbackend.partitioner import place


class AtMost(TableBackend):
    """Takes regions of up to four ops."""

    def decline(self, sketch: RegionSketch) -> Unsupported | None:
        return Unsupported("region-size", "large") if len(sketch.views) > 4 else None


def two_branches():
    """A product that nothing else shares a value with but an input, beside a chain of four."""
    nodes = [node("g", MATMUL, "x0", "w1")]
    nodes += [
        node("a", POINTWISE, "x0"),
        node("b", BINARY, "a", "w0"),
        node("c", POINTWISE, "b"),
        node("d", BINARY, "c", "b"),
    ]
    return graph(nodes, ["g", "d"], inputs=2)


def plan_of(backend, single=None):
    costs = TableCosts(entries={"wide": 100.0, "eager": 100.0}, ops={("wide", ""): 1.0, ("eager", ""): 50.0})
    return place(two_branches(), [backend, eager()], costs, single=single)


@pytest.mark.parametrize("single", [None, "wide"])
def test_a_lone_product_joins_the_region_that_reads_its_input(single):
    plan = plan_of(TableBackend("wide", wanted=RegionConditions(minimum_ops=2)), single)
    assert [(region.backend, set(region.nodes)) for region in plan.regions] == [("wide", set("gabcd"))]
    assert not [refusal for refusal in plan.refusals if refusal.backend == "wide"]


def test_what_the_whole_region_is_refused_for_keeps_it_apart():
    plan = plan_of(AtMost("wide", wanted=RegionConditions(minimum_ops=2)), "wide")
    owners = {name: region.backend for region in plan.regions for name in region.nodes}
    assert owners == {"g": "eager", **dict.fromkeys("abcd", "wide")}
    assert [refusal.code for refusal in plan.refusals if refusal.node == "g"] == ["region-too-small"]


def test_a_region_that_the_product_waits_for_and_that_waits_for_it_is_no_host():
    nodes = [node("a", POINTWISE, "x0"), node("b", POINTWISE, "a"), node("e", SOFTMAX, "b")]
    nodes += [node("g", MATMUL, "e"), node("h", SOFTMAX, "g"), node("c", BINARY, "h", "b"), node("d", POINTWISE, "c")]
    wide = TableBackend("wide", refused=frozenset({SOFTMAX}), wanted=RegionConditions(minimum_ops=2))
    plan = place(
        graph(nodes, ["d"]), [wide, eager()], TableCosts(entries={"wide": 100.0, "eager": 100.0}), single="wide"
    )
    owners = {name: region.backend for region in plan.regions for name in region.nodes}
    assert owners["g"] == "eager" and owners["c"] == owners["d"] == owners["a"] == "wide"
