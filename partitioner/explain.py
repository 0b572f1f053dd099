"""What a refusal costs: the counterfactual "if this backend took these ops, the plan would be faster by so much".

Place: after ``place``, for reports. Input: what ``place`` was given and its plan. Output: groups of refusals with the
seconds that lifting each would save, largest first. Pure: nothing is compiled or changed.
Method: refusals are grouped by backend, code and operator; each group is bounded by what the refused ops cost now, and
the few groups that could save most are placed again with the group lifted, at the cost model's price.
Only refusals by verdict can be lifted; the user's own rules and quarantines are not second-guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mixbackend.contracts import (
    Backend,
    CompiledRegion,
    CostModel,
    OpGraph,
    OpView,
    Plan,
    Preference,
    Refusal,
    RefusalCode,
    Region,
    RegionConditions,
    RegionSketch,
    Supported,
    Traits,
    Unsupported,
    Verdict,
)
from mixbackend.contracts.backend import Availability
from mixbackend.contracts.patterns import Pattern
from mixbackend.partitioner.placement import place

NOT_LIFTED: frozenset[str] = frozenset({"preference", "quarantined", "not-allowed", "unavailable", "random", "effect"})


@dataclass(frozen=True, slots=True)
class Saving:
    """What lifting one group of refusals would save.

    Attributes:
        backend: who refuses.
        code: why.
        op: operator that is refused.
        nodes: names of the refused nodes, in graph order.
        detail: of the first refusal.
        seconds: estimated saving of the whole graph; 0 if none.
    """

    backend: str
    code: RefusalCode
    op: str
    nodes: tuple[str, ...]
    detail: str
    seconds: float

    def __str__(self) -> str:
        return (
            f"if {self.backend} took {self.op} ({len(self.nodes)} nodes, refused: {self.code} {self.detail}), "
            f"the graph would be {self.seconds:.3e} s faster"
        )


def savings(
    graph: OpGraph,
    backends: Sequence[Backend],
    costs: CostModel,
    plan: Plan,
    *,
    preferences: Sequence[Preference] = (),
    exclusions: frozenset[tuple[str, str]] = frozenset(),
    pinned: Mapping[str, str] | None = None,
    minimum_ops: Mapping[str, int] | None = None,
    tried: int = 3,
) -> tuple[Saving, ...]:
    """The most promising groups of refusals and what lifting each would save.

    Args:
        plan: of this graph with these backends, costs, preferences, exclusions, pins and minimum sizes.
        tried: groups that are placed again.
    """
    groups: dict[tuple[str, RefusalCode, str], list[Refusal]] = {}
    for refusal in plan.refusals:
        if refusal.code not in NOT_LIFTED:
            key = (refusal.backend, refusal.code, graph.node_by_name[refusal.node].op)
            groups.setdefault(key, []).append(refusal)
    owner = {name: region.backend for region in plan.regions for name in region.nodes}
    promise = {
        key: sum(_now_over_then(graph, costs, owner[item.node], key[0], item.node) for item in items)
        for key, items in groups.items()
    }
    found: list[Saving] = []
    for key in sorted(groups, key=lambda key: -promise[key])[:tried]:
        backend, code, op = key
        nodes = frozenset(item.node for item in groups[key])
        lifted = [_Lifted(item, nodes) if item.name == backend else item for item in backends]
        other = place(
            graph,
            lifted,
            costs,
            preferences=preferences,
            exclusions=exclusions,
            pinned=pinned,
            minimum_ops=minimum_ops,
        )
        gain = max(0.0, plan.estimated_s - other.estimated_s)
        ordered = tuple(item.node for item in groups[key])
        found.append(Saving(backend, code, op, ordered, groups[key][0].detail, gain))
    return tuple(sorted(found, key=lambda item: (-item.seconds, item.backend, item.op)))


def _now_over_then(graph: OpGraph, costs: CostModel, now: str, then: str, name: str) -> float:
    """A rough promise: the op's price now less its price there, and the entries of a region that it may split."""
    view = graph.view(name)
    return costs.op(now, view).seconds - costs.op(then, view).seconds + costs.entry(now) + costs.entry(then)


class _Lifted(Backend):
    """A backend that no longer refuses some nodes."""

    def __init__(self, backend: Backend, nodes: frozenset[str]) -> None:
        self.name = backend.name  # type: ignore[misc]
        self._backend = backend
        self._keys = nodes

    def availability(self) -> Availability:
        return self._backend.availability()

    def fingerprint(self) -> str:
        return self._backend.fingerprint()

    def traits(self) -> Traits:
        return self._backend.traits()

    def conditions(self) -> RegionConditions:
        return self._backend.conditions()

    def patterns(self) -> tuple[Pattern, ...]:
        return self._backend.patterns()

    def decline(self, sketch: RegionSketch) -> Unsupported | None:
        return self._backend.decline(sketch)

    def region_cost(self, sketch: RegionSketch) -> float | None:
        return self._backend.region_cost(sketch)

    def judge(self, view: OpView) -> Verdict:
        return Supported() if view.node.name in self._keys else self._backend.judge(view)

    def compile(self, region: Region) -> CompiledRegion:
        return self._backend.compile(region)
