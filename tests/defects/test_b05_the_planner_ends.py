"""B5: taking backends out of a plan ends, also where a backend prices its regions itself and a rule requires it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given, settings
from hypothesis import strategies as st
from partitioner_cases import TableBackend, TableCosts, eager, graph, node, random_case
from tiers import draws

from mixbackend.contracts import NodeMatch, OpGraph, Plan, Preference, RegionSketch
from mixbackend.partitioner import place
from mixbackend.partitioner.step_clock import StepClock

BACKENDS = 4
"""A plan might do without each of them, which is searched for once."""


class Bounded(StepClock):
    """Too many searches are an error."""

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        with super().measure(name):
            assert self.times["fewer"] <= BACKENDS, "the planner does not end"
            yield


class Pricing(TableBackend):
    """Names a price for every region, whatever is in it."""

    def region_cost(self, sketch: RegionSketch) -> float | None:
        return 0.25


def owners(plan: Plan) -> dict[str, str]:
    return {name: region.backend for region in plan.regions for name in region.nodes}


def test_a_backend_that_prices_its_regions_and_is_required() -> None:
    nodes = [node(f"n{place}", "aten.relu.default", f"n{place - 1}" if place else "x0") for place in range(3)]
    nodes = [node(item.name, item.op, *item.references(), module_class=f"C{item.name}") for item in nodes]
    rule = Preference(NodeMatch(module_class="Cn1"), "require", "priced")
    ops = {(name, f"Cn{number}"): 9.0 for name in ("one", "two", "eager") for number in range(3)}
    ops |= {("one", "Cn0"): 1.0, ("two", "Cn2"): 1.0}
    costs = TableCosts(0, dict.fromkeys(("priced", "one", "two", "eager"), 0.0), {}, ops, 0.0, 0.0, 0.0)
    priced = Pricing("priced", refused=frozenset({"n0", "n2"}))
    plan = place(
        graph(nodes, ["n2"]),
        [priced, TableBackend("one"), TableBackend("two"), eager()],
        costs,
        preferences=[rule],
        margin=0.04,
        clock=Bounded(),
    )
    assert owners(plan) == {"n0": "one", "n1": "priced", "n2": "two"}


def pricing_case(seed: int) -> tuple[OpGraph, list[TableBackend], TableCosts]:
    op_graph, backends, costs = random_case(seed, most=6, backends=4)
    listed = [
        Pricing(item.name, refused=item.refused, declared=item.declared) if slot < 2 else item
        for slot, item in enumerate(backends[:-1])
    ]
    return op_graph, [*listed, eager()], costs


@settings(max_examples=draws(21, 60), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), margin=st.sampled_from([0.04, 0.5]))
def test_it_ends_and_what_is_required_stays(seed: int, margin: float) -> None:
    op_graph, backends, costs = pricing_case(seed)
    able = [item for item in op_graph.placed_nodes if item.module_class and item.name not in backends[0].refused][:1]
    rules = [Preference(NodeMatch(module_class=item.module_class), "require", "b0") for item in able]
    best = place(op_graph, backends, costs, preferences=rules)
    plan = place(op_graph, backends, costs, preferences=rules, margin=margin, clock=Bounded())
    assert plan.estimated_s <= best.estimated_s * (1.0 + margin) ** 2 + 1e-9
    assert all(owners(plan)[item.name] == "b0" for item in able)
