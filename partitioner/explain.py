"""What a refusal costs: the counterfactual "if this backend took these ops, the plan would be faster by so much".

Place: after ``place``, for reports. Input: what ``place`` was given and its plan. Output: refusals, in groups and one
by one, with the seconds that lifting each would save, largest first. Pure: nothing is compiled or changed.
Method: refusals are grouped by backend, code and operator; each group has a rough promise, and the few that promise
most are placed again with the group lifted, at the cost model's price. Lifting less hardly ever saves more: single
refusals are tried in the groups that save anything, and only while their group saves more than the best single one.
Only refusals by verdict can be lifted; the user's own rules, quarantines and conditions on regions are not
second-guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixbackend.contracts import Backend, CostModel, OpGraph, Plan, Preference, Refusal, RefusalCode
from mixbackend.partitioner.judging import GETITEM
from mixbackend.partitioner.placement import place
from mixbackend.partitioner.signatures import MetaNumbers, signature_of

NOT_LIFTED: frozenset[str] = frozenset(
    {
        "preference",
        "quarantined",
        "not-allowed",
        "unavailable",
        "random",
        "effect",
        "region-too-small",
        "region-condition",
    }
)


@dataclass(frozen=True, slots=True)
class Saving:
    """What lifting some refusals of one backend would save.

    Attributes:
        backend: the one that refuses.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "backend": self.backend,
            "code": self.code,
            "op": self.op,
            "nodes": list(self.nodes),
            "detail": self.detail,
            "saves_s": self.seconds,
        }

    def __str__(self) -> str:
        which = f"%{self.nodes[0]} alone" if len(self.nodes) == 1 else f"{len(self.nodes)} nodes"
        why = f"{self.code} {self.detail}".rstrip()
        return (
            f"if {self.backend} took {self.op} ({which}, refused: {why}), "
            f"the graph would be {self.seconds * 1e3:.3g} ms faster"
        )


@dataclass(frozen=True)
class Question:
    """What ``place`` was given, and its plan: all that counterfactuals need.

    Attributes:
        graph, backends, costs, preferences, exclusions, pinned, minimum_ops: see ``place``.
        plan: of this graph.
    """

    graph: OpGraph
    backends: Sequence[Backend]
    costs: CostModel
    plan: Plan
    preferences: Sequence[Preference] = ()
    exclusions: frozenset[tuple[str, str]] = frozenset()
    pinned: Mapping[str, str] | None = None
    minimum_ops: Mapping[str, int] | None = None

    def placed(self, lifted: frozenset[tuple[str, str]] = frozenset(), pinned: Mapping[str, str] | None = None) -> Plan:
        """The plan with some refusals lifted, or with more nodes pinned."""
        return place(
            self.graph,
            self.backends,
            self.costs,
            preferences=self.preferences,
            exclusions=self.exclusions,
            pinned={**(self.pinned or {}), **(pinned or {})},
            minimum_ops=self.minimum_ops,
            lifted=lifted,
        )

    def least_s(self) -> float:
        """Seconds of the best plan that the search finds as things are: what a counterfactual is held against.

        The plan may be dearer than that where measurements, or the margin of a mixture, decided.
        """
        return self.plan.estimated_s if self.plan.optimal else min(self.plan.estimated_s, self.placed().estimated_s)


def savings(question: Question, *, tried: int = 3) -> tuple[Saving, ...]:
    """The most promising groups of refusals and what lifting each would save; ``tried`` are placed again."""
    graph, plan = question.graph, question.plan
    groups: dict[tuple[str, RefusalCode, str], list[Refusal]] = {}
    for refusal in plan.refusals:
        op = graph.node_by_name[refusal.node].op
        if refusal.code not in NOT_LIFTED and op != GETITEM:
            groups.setdefault((refusal.backend, refusal.code, op), []).append(refusal)
    owner = {name: region.backend for region in plan.regions for name in region.nodes}
    promise = {key: sum(_promise(question, owner, item) for item in items) for key, items in groups.items()}
    chosen = sorted(groups, key=lambda key: -promise[key])[:tried]
    least = question.least_s() if chosen else 0.0
    return _ranked(_saving(question, groups[key], least) for key in chosen)


def single_savings(question: Question, groups: Sequence[Saving], *, tried: int = 2) -> tuple[Saving, ...]:
    """The single refusals that cost most, out of groups that ``savings`` found.

    Args:
        tried: refusals that are placed again; of equal ops, one stands for all.
    """
    graph, plan = question.graph, question.plan
    refusals = {(item.node, item.backend): item for item in plan.refusals}
    owner = {name: region.backend for region in plan.regions for name in region.nodes}
    found = [group for group in groups if len(group.nodes) == 1 and group.seconds > 0.0]
    least: float | None = None
    for group in sorted(groups, key=lambda item: -item.seconds):
        best = max((item.seconds for item in found), default=0.0)
        if len(group.nodes) == 1 or group.seconds <= best or tried <= 0:
            continue
        number_of = MetaNumbers()
        distinct = {signature_of(graph.view(name), number_of): name for name in reversed(group.nodes)}
        items = [refusals[name, group.backend] for name in distinct.values()]
        items = sorted(items, key=lambda item: -_promise(question, owner, item))[:tried]
        tried -= len(items)
        least = question.least_s() if least is None else least
        found += [_saving(question, [item], least) for item in items]
    return _ranked(item for item in found if item.seconds > 0.0)


def _saving(question: Question, refusals: Sequence[Refusal], least: float) -> Saving:
    """Place again without these refusals, which are alike."""
    first, graph = refusals[0], question.graph
    lifted = frozenset((item.node, item.backend) for item in refusals)
    gain = max(0.0, least - question.placed(lifted).estimated_s)
    nodes = tuple(item.node for item in refusals)
    return Saving(first.backend, first.code, graph.node_by_name[first.node].op, nodes, first.detail, gain)


def _ranked(items: Iterable[Saving]) -> tuple[Saving, ...]:
    return tuple(sorted(items, key=lambda item: (-item.seconds, item.backend, item.op, item.nodes)))


def _promise(question: Question, owner: Mapping[str, str], refusal: Refusal) -> float:
    """A rough promise: the op's price now less its price there, and the entries of a region that it may split."""
    costs, view = question.costs, question.graph.view(refusal.node)
    now, then = owner[refusal.node], refusal.backend
    return costs.op(now, view).seconds - costs.op(then, view).seconds + costs.entry(now) + costs.entry(then)
