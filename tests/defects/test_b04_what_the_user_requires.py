"""B4: a ``require`` rule outranks what backends find worth it; ``min_region`` replaces the backend's number."""

from __future__ import annotations

import pytest
from partitioner_cases import MATMUL, POINTWISE, TableBackend, TableCosts, eager, graph, node

from mixbackend.contracts import (
    NodeMatch,
    PlacementError,
    Plan,
    Preference,
    RefusalCode,
    RegionConditions,
    RegionSketch,
    Unsupported,
)
from mixbackend.partitioner import place
from mixbackend.partitioner.reprice import reprice

CHAIN = graph(
    [
        node("a", MATMUL, "x0", "w0", module="0"),
        node("b", POINTWISE, "a", module="1"),
        node("c", MATMUL, "b", "w0", module="2"),
    ],
    ["c"],
)
COSTS = TableCosts(0, {"picky": 0.0, "eager": 0.0}, {}, {("picky", ""): 5.0, ("eager", ""): 1.0}, 0.0, 0.0, 0.0)
RULE = Preference(NodeMatch(module="2"), "require", "picky", origin="rules.yaml:2")
DEMANDING = {
    "ops": RegionConditions(minimum_ops=4),
    "seconds": RegionConditions(minimum_seconds=1e9),
    "content": RegionConditions(must_contain=frozenset({"convolution"})),
}


class Declining(TableBackend):
    """Declines every region with this code."""

    code: RefusalCode = "declined"

    def decline(self, sketch: RegionSketch) -> Unsupported | None:
        return Unsupported(self.code, "as it is")


def owners(plan: Plan) -> dict[str, str]:
    return {name: region.backend for region in plan.regions for name in region.nodes}


@pytest.mark.parametrize("conditions", DEMANDING.values(), ids=DEMANDING.keys())
def test_one_op_can_be_required_whatever_the_backend_wants(conditions: RegionConditions) -> None:
    picky = TableBackend("picky", wanted=conditions)
    plan = place(CHAIN, [picky, eager()], COSTS, preferences=[RULE])
    assert owners(plan) == {"a": "eager", "b": "eager", "c": "picky"}
    appraised = reprice(CHAIN, [plan], [picky, eager()], COSTS, preferences=[RULE])
    assert appraised.seconds[0] == pytest.approx(plan.estimated_s)


@pytest.mark.parametrize("code", ["declined", "region-too-small"])
def test_nor_does_it_help_to_decline_for_want_of_worth(code: RefusalCode) -> None:
    picky = Declining("picky")
    picky.code = code
    assert owners(place(CHAIN, [picky, eager()], COSTS, preferences=[RULE]))["c"] == "picky"


def test_what_a_backend_cannot_do_stays_a_refusal() -> None:
    picky = Declining("picky")
    picky.code = "layout"
    with pytest.raises(PlacementError, match="picky: layout as it is"):
        place(CHAIN, [picky, eager()], COSTS, preferences=[RULE])


def test_what_nobody_requires_is_as_picky_as_before() -> None:
    cheap = TableCosts(0, {"picky": 0.0, "eager": 0.0}, {}, {("picky", ""): 0.1, ("eager", ""): 1.0}, 0.0, 0.0, 0.0)
    rules = [RULE, Preference(NodeMatch(module="1"), "require", "eager")]
    picky = TableBackend("picky", wanted=RegionConditions(minimum_ops=2))
    plan = place(CHAIN, [picky, eager()], cheap, preferences=rules)
    assert owners(plan) == {"a": "eager", "b": "eager", "c": "picky"}


@pytest.mark.parametrize(("minimum", "owner"), [(1, "picky"), (3, "picky"), (4, "eager"), (None, "eager")])
def test_the_users_number_is_the_number(minimum: int | None, owner: str) -> None:
    cheap = TableCosts(0, {"picky": 0.0, "eager": 0.0}, {}, {("picky", ""): 0.1, ("eager", ""): 1.0}, 0.0, 0.0, 0.0)
    picky = TableBackend("picky", wanted=RegionConditions(minimum_ops=9))
    wanted = {} if minimum is None else {"picky": minimum}
    plan = place(CHAIN, [picky, eager()], cheap, minimum_ops=wanted)
    assert set(owners(plan).values()) == {owner}
