"""Plans that outlive a capture: nodes by operator and place in the graph instead of by the names of one capture.

Place: between a ``Plan`` and what keeps it: the database, a lock file, the processes that measure.
Form: a ``Plan`` with node names ``<operator>@<place>``, places counted from 0 over all nodes of the graph; what depends
on the machine's present state (refusals, bounds) is left out.
Invariants: ``local_plan(canonical_plan(plan, graph), graph)`` has the regions of ``plan``; a graph with another
operator at a place is refused.
Non-goals: whether the plan is legal or supported; see ``contracts.check_plan``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mixbackend.contracts import OpGraph, PlacementError, Plan, PlannedRegion

FIXED = "fixed"
"""``Plan.search`` of plans that were not searched for now."""


def canonical_plan(plan: Plan, graph: OpGraph) -> Plan:
    """A plan of a graph for other captures of it."""
    names = {name: place for place, name in local_names(graph).items()}
    return _renamed(plan, names.__getitem__)


def local_names(graph: OpGraph) -> dict[str, str]:
    """The names of a graph's nodes by their canonical ones."""
    return {f"{node.op}@{place}": node.name for place, node in enumerate(graph.nodes)}


def local_plan(plan: Plan, graph: OpGraph) -> Plan:
    """A canonical plan with the names of a graph.

    Raises:
        PlacementError: the graph is not the one that the plan was made for; names the first place that differs.
    """
    names = local_names(graph)

    def name_of(name: str) -> str:
        if name not in names:
            raise PlacementError(
                what=f"the plan speaks of {name}, which graph {graph.id} does not have",
                hint="the model, torch or the configuration has changed since: tune again",
            )
        return names[name]

    return replace(_renamed(plan, name_of), graph_id=graph.id, phase=graph.phase)


def _renamed(plan: Plan, name_of: Callable[[str], str]) -> Plan:
    regions = tuple(_renamed_region(region, name_of) for region in plan.regions)
    kept = Plan("", plan.phase, plan.dynamic, regions, estimated_s=plan.estimated_s, search=FIXED)
    return replace(kept, single_backend_s=plan.single_backend_s)


def _renamed_region(region: PlannedRegion, name_of: Callable[[str], str]) -> PlannedRegion:
    return replace(
        region,
        nodes=tuple(map(name_of, region.nodes)),
        copies=tuple(map(name_of, region.copies)),
        matches=tuple((pattern, tuple(map(name_of, nodes))) for pattern, nodes in region.matches),
    )
