"""Rematerialization: what the forward saves for the backward, and in which layout, decided with the placement in view.

Place: between AOTAutograd's joint graph and its split into forward and backward.
Input: the joint graph. Output: the same graph, with channels-last convolutions if they are planned cheaper, with ops
marked that must be saved rather than computed again, and with softmaxes written out that are computed again.
The layout of images is chosen here for both halves: so a saved tensor has the same strides in both of them.
torch's minimum-cut split assumes that cheap ops are recomputed for free inside a fused kernel. That holds only where
the op's owner really fuses it with its consumers; elsewhere recomputation is a second full pass over memory. Results of
softmaxes it always saves; what is saved instead where that is better, ``plan.softmax_recompute`` decides.
What was decided is a value, so that a lock file can hold it: other savings make other graphs.
Invariants: graph outputs keep their traced strides; forward and backward are planned for themselves afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.fx
from torch.utils.checkpoint import CheckpointPolicy

from mixbackend.contracts import OpGraph, PlacementError, Plan
from mixbackend.contracts.describe_op import operator_name
from mixbackend.contracts.torch_compat import RECOMPUTATION_POLICY, is_tangent
from mixbackend.graph.copies import copy_module
from mixbackend.graph.describe import describe
from mixbackend.graph.identity import Captured
from mixbackend.graph.normalize import normalize
from mixbackend.plan.fusion import Fusion
from mixbackend.plan.joint_decision import JointDecision
from mixbackend.plan.layouts import channels_last_copy, make_channels_last, reads_misplaced_images
from mixbackend.plan.planner import Planner
from mixbackend.plan.softmax_decomposition import is_softmax, write_out
from mixbackend.plan.softmax_recompute import Recomputation
from mixbackend.plan.stored_plans import StoredPlans
from mixbackend.reporting.records import AS_TRACED, CHANNELS_LAST

_LEAST_AT_STAKE = 0.02
"""Share of a step that convolutions must take for their layout to be worth a second plan: it may save half of it."""


def mark_saved(joint: torch.fx.GraphModule, planner: Planner) -> JointDecision:
    """Plan a joint graph, lay out its images, and mark the ops that would not be fused when they are recomputed, and
    those that take less to recompute than to save; or mark it as an earlier process did."""
    described, question = _describe(joint), _question(joint)
    stored = planner.stored
    known = None if stored is None else _kept(stored, described.graph, question)
    if known is not None:
        try:
            mark_as_decided(joint, known)
            return known
        except PlacementError:
            described = _describe(joint)  # it may be laid out by now
    decision = _decide(joint, described, planner)
    if stored is not None:
        stored.keep(described.graph, question, decision.to_dict())
    _mark(joint, decision)
    return decision


def _decide(joint: torch.fx.GraphModule, described: _Described, planner: Planner) -> JointDecision:
    """Plan a joint graph, and lay out its images."""
    planned = _in_best_layout(joint, described, planner)
    fusion = Fusion.of(planned.graph, planned.plan, planner.backends)
    nodes = list(zip(joint.graph.nodes, planned.names, strict=True))
    recomputed = Recomputation(
        fusion,
        planner.costs.running(planned.graph),
        tangents=frozenset(name for node, name in nodes if node.op == "placeholder" and is_tangent(node)),
        decided=frozenset(name for node, name in nodes if RECOMPUTATION_POLICY in node.meta),
    ).nodes()
    names = list(zip(_names(joint), planned.names, strict=True))
    saved = fusion.unfused - recomputed
    return JointDecision(
        planned.layout,
        saved=tuple(name for name, planned_name in names if planned_name in saved),
        recomputed=tuple(name for name, planned_name in names if planned_name in recomputed),
    )


def _question(joint: torch.fx.GraphModule) -> str:
    """What beside the described graph decides."""
    nodes = list(enumerate(joint.graph.nodes))
    tangents = [place for place, node in nodes if node.op == "placeholder" and is_tangent(node)]
    return f"joint {tangents} {[place for place, node in nodes if RECOMPUTATION_POLICY in node.meta]}"


def _kept(stored: StoredPlans, graph: OpGraph, question: str) -> JointDecision | None:
    """What an earlier process decided."""
    data = stored.read(graph, question)
    try:
        return None if data is None else JointDecision.from_dict(data)
    except ValueError:
        return None


def mark_as_decided(joint: torch.fx.GraphModule, decision: JointDecision) -> None:
    """Lay out and mark a joint graph as was decided before.

    Raises:
        PlacementError: the decision is about another graph; the graph may be laid out already.
    """
    if decision.layout == CHANNELS_LAST:
        make_channels_last(joint)
    names = _names(joint)
    for wish, decided in (
        ("saved for the backward", decision.saved),
        ("computed again in the backward", decision.recomputed),
    ):
        strangers = set(decided).difference(names)
        if strangers:
            raise PlacementError(
                what=f"{', '.join(sorted(strangers))} should be {wish}, and the graph has no such op",
                hint="the model or torch has changed since: tune again",
            )
    _mark(joint, decision)


def joint_key(joint: torch.fx.GraphModule) -> str:
    """What makes a joint graph the same elsewhere; see ``graph.identity``.

    Raises:
        RegionTextError: the graph has no text.
    """
    return Captured(joint, "forward", {}, "joint").identity.key


def _names(joint: torch.fx.GraphModule) -> list[str]:
    return [f"{operator_name(node.target)}@{place}" for place, node in enumerate(joint.graph.nodes)]


def _mark(joint: torch.fx.GraphModule, decision: JointDecision) -> None:
    by_name = dict(zip(_names(joint), joint.graph.nodes, strict=True))
    _set_policy(CheckpointPolicy.MUST_SAVE, (by_name[name] for name in decision.saved))
    again = [by_name[name] for name in decision.recomputed]
    _set_policy(CheckpointPolicy.MUST_RECOMPUTE, (node for node in again if not is_softmax(node)))
    write_out(joint, [node for node in again if is_softmax(node)])


def _set_policy(policy: CheckpointPolicy, nodes: Iterable[torch.fx.Node]) -> None:
    """Say to torch's split what to do with values; a user's own checkpointing takes precedence."""
    for node in nodes:
        node.meta.setdefault(RECOMPUTATION_POLICY, policy)


@dataclass(frozen=True)
class _Described:
    """A joint graph's description, and the names there of all its fx nodes, in order."""

    graph: OpGraph
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Planned:
    """A joint graph's description and plan, the names there of all its fx nodes, in order, and its layout."""

    graph: OpGraph
    plan: Plan
    names: tuple[str, ...]
    layout: str


def _in_best_layout(joint: torch.fx.GraphModule, described: _Described, planner: Planner) -> _Planned:
    """Rewrite the joint graph in place if its convolutions are planned cheaper on channels-last images."""
    traced = _plan(described, planner, AS_TRACED)
    at_stake = sum(planner.op_seconds(traced.graph, *item) for item in _misplaced(joint, traced))
    relaid = channels_last_copy(joint) if at_stake > _LEAST_AT_STAKE * traced.plan.estimated_s else None
    if relaid is None:
        return traced
    other = _plan(_describe(relaid.module), planner, CHANNELS_LAST)
    if other.plan.estimated_s >= traced.plan.estimated_s:
        return traced
    make_channels_last(joint)
    return other


def _misplaced(joint: torch.fx.GraphModule, planned: _Planned) -> Iterator[tuple[str, str]]:
    """Convolutions that another layout might speed up: their backends, and their names in the plan."""
    owners = {name: region.backend for region in planned.plan.regions for name in region.nodes}
    for node, name in zip(joint.graph.nodes, planned.names, strict=True):
        if name in owners and reads_misplaced_images(node):
            yield owners[name], name


def _plan(described: _Described, planner: Planner, layout: str) -> _Planned:
    return _Planned(described.graph, planner.place(described.graph), described.names, layout)


def _describe(joint: torch.fx.GraphModule) -> _Described:
    """A joint graph as it is planned; it is left as it is."""
    module = copy_module(joint)
    # Views were kept until here: the split recognises them by their operators, which normalising renames. It also
    # makes equal ops one, as the split does: of several, the first is the one that counts.
    names = tuple(node.name for node in module.graph.nodes)
    normalize(module)
    return _Described(describe(module, "forward", "joint", {}), names)
