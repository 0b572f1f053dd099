"""Joint: what the forward saves for the backward, decided with the placement in view.

Place: between AOTAutograd's joint graph and its split into forward and backward.
Input: the joint graph. Output: the same graph with ops marked that must be saved rather than computed again.
torch's minimum-cut split assumes that cheap ops are recomputed for free inside a fused kernel. That holds only where
the op's owner really fuses it with its consumers; elsewhere recomputation is a second full pass over memory.
Invariants: only hints are written; forward and backward are planned for themselves afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.fx
from torch.utils.checkpoint import CheckpointPolicy

from mixbackend.contracts import Backend, OpGraph, Plan
from mixbackend.runtime.describe import describe
from mixbackend.runtime.normalize import normalize
from mixbackend.runtime.session import Session

_FREE_CLASSES = frozenset({"view", "factory"})


def mark_saved(joint: torch.fx.GraphModule, session: Session) -> None:
    """Plan a joint graph and mark the ops whose recomputation would not be fused."""
    graph = _describe_copy(joint)
    plan = session.place(graph, frozenset(), {})
    saved = unfused_nodes(graph, plan, session.backends)
    for node in joint.graph.nodes:
        # A user's own checkpointing decides before we do.
        if node.name in saved and "recompute" not in node.meta:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def unfused_nodes(graph: OpGraph, plan: Plan, backends: Sequence[Backend]) -> frozenset[str]:
    """Nodes that are not kept out of memory together with all their consumers, and that are not free to repeat."""
    owner = {name: region.backend for region in plan.regions for name in region.nodes}
    fused = {backend.name: backend.traits().fused for backend in backends}
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


def _describe_copy(joint: torch.fx.GraphModule) -> OpGraph:
    """Describe without touching: the split recognises views by their operators, which normalising would rename."""
    copied = torch.fx.Graph()
    returned = copied.graph_copy(joint.graph, {})
    copied.output(returned)
    module = torch.fx.GraphModule(joint, copied)
    normalize(module)
    return describe(module, "forward", "joint", {})
