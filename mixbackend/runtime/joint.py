"""Joint: what the forward saves for the backward, and in which layout, decided with the placement in view.

Place: between AOTAutograd's joint graph and its split into forward and backward.
Input: the joint graph. Output: the same graph, with channels-last convolutions if they are planned cheaper, and with
ops marked that must be saved rather than computed again.
The layout of images is chosen here for both halves: so a saved tensor has the same strides in both of them.
torch's minimum-cut split assumes that cheap ops are recomputed for free inside a fused kernel. That holds only where
the op's owner really fuses it with its consumers; elsewhere recomputation is a second full pass over memory.
What was decided is a value, so that a lock file can hold it: other savings make other graphs.
Invariants: graph outputs keep their traced strides; forward and backward are planned for themselves afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.fx
from torch.utils.checkpoint import CheckpointPolicy

from mixbackend.contracts import Backend, OpGraph, PlacementError, Plan
from mixbackend.contracts.describe_op import operator_name
from mixbackend.reporting.records import AS_TRACED, CHANNELS_LAST
from mixbackend.runtime.copies import copy_module
from mixbackend.runtime.cut import Cut
from mixbackend.runtime.describe import describe
from mixbackend.runtime.identity import Captured
from mixbackend.runtime.layouts import channels_last_copy, make_channels_last
from mixbackend.runtime.normalize import normalize
from mixbackend.runtime.session import Session

_FREE_CLASSES = frozenset({"view", "factory"})


def mark_saved(joint: torch.fx.GraphModule, session: Session) -> Cut:
    """Plan a joint graph, lay out its images, and mark the ops whose recomputation would not be fused."""
    planned = _in_best_layout(joint, session)
    saved = unfused_nodes(planned.graph, planned.plan, session.backends)
    nodes = zip(_names(joint), planned.names, strict=True)
    cut = Cut(planned.layout, tuple(name for name, planned_name in nodes if planned_name in saved))
    _mark(joint, cut)
    return cut


def mark_as_decided(joint: torch.fx.GraphModule, cut: Cut) -> None:
    """Lay out and mark a joint graph as was decided before.

    Raises:
        PlacementError: the decision is about another graph; the graph may be laid out already.
    """
    if cut.layout == CHANNELS_LAST:
        make_channels_last(joint)
    strangers = set(cut.saved).difference(_names(joint))
    if strangers:
        raise PlacementError(
            what=f"{', '.join(sorted(strangers))} should be saved for the backward, and the graph has no such op",
            hint="the model or torch has changed since: tune again",
        )
    _mark(joint, cut)


def joint_key(joint: torch.fx.GraphModule) -> str:
    """What makes a joint graph the same elsewhere; see ``runtime.identity``.

    Raises:
        RegionTextError: the graph has no text.
    """
    return Captured(joint, "forward", {}, "joint").identity.key


def _names(joint: torch.fx.GraphModule) -> list[str]:
    return [f"{operator_name(node.target)}@{place}" for place, node in enumerate(joint.graph.nodes)]


def _mark(joint: torch.fx.GraphModule, cut: Cut) -> None:
    saved = set(cut.saved)
    for node, name in zip(joint.graph.nodes, _names(joint), strict=True):
        # A user's own checkpointing decides before we do.
        if name in saved and "recompute" not in node.meta:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


@dataclass(frozen=True)
class _Planned:
    """A joint graph's description and plan, the names there of all its fx nodes, in order, and its layout."""

    graph: OpGraph
    plan: Plan
    names: tuple[str, ...]
    layout: str


def _in_best_layout(joint: torch.fx.GraphModule, session: Session) -> _Planned:
    """Rewrite the joint graph in place if its convolutions are planned cheaper on channels-last images."""
    traced = _plan(copy_module(joint), session, AS_TRACED)
    relaid = channels_last_copy(joint)
    if relaid is None:
        return traced
    other = _plan(relaid.module, session, CHANNELS_LAST)
    if other.plan.estimated_s >= traced.plan.estimated_s:
        return traced
    make_channels_last(joint)
    return other


def _plan(module: torch.fx.GraphModule, session: Session, layout: str) -> _Planned:
    # Views were kept until here: the split recognises them by their operators, which normalising renames. It also
    # makes equal ops one, as the split does: of several, the first is the one that counts.
    names = tuple(node.name for node in module.graph.nodes)
    normalize(module)
    graph = describe(module, "forward", "joint", {})
    return _Planned(graph, session.place(graph), names, layout)


def unfused_nodes(graph: OpGraph, plan: Plan, backends: Sequence[Backend]) -> frozenset[str]:
    """Nodes that are not kept out of memory together with all their consumers, and that are not free to repeat."""
    owner = {name: region.backend for region in plan.regions for name in region.nodes}
    fused = {backend.name: backend.traits().fused_on(graph.device_type) for backend in backends}
    classes = {node.name: graph.view(node.name).op_class for node in graph.placed_nodes}
    return frozenset(
        name
        for name in owner
        if classes[name] not in _FREE_CLASSES and not _all_fused(name, graph, owner, fused, classes)
    )


def _all_fused(
    name: str,
    graph: OpGraph,
    owner: Mapping[str, str],
    fused: Mapping[str, frozenset[tuple[str, str]]],
    classes: Mapping[str, str],
) -> bool:
    return all(
        owner[consumer] == owner[name] and (classes[name], classes[consumer]) in fused[owner[name]]
        for consumer in _consumers_behind_views(name, graph, classes)
    )


def _consumers_behind_views(name: str, graph: OpGraph, classes: Mapping[str, str]) -> Iterator[str]:
    """Ops that read a value, directly or through views of it."""
    for consumer in graph.consumers[name]:
        if classes.get(consumer) == "view":
            yield from _consumers_behind_views(consumer, graph, classes)
        elif consumer in classes:
            yield consumer
