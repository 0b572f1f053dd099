"""Pieces: which regions of a graph are recorded together as one CUDA graph, and why the others are not.

Place: below ``recorded``. Input: a captured graph, its regions in execution order, who owns them.
Output: pieces in execution order: runs of neighbouring regions that can be recorded, and single ones that cannot.
A recording replays kernels with the very pointers that they had: so all memory must be the GPU's, sizes must be those
of the recording, and nobody may wait for a result on the way. What cannot be recorded splits the graph.
Invariants: every region is in one piece; the order stays; numbers that a piece takes are known before it runs.
Non-goals: recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mixbackend.contracts import OpGraph, OpTag, SymbolicSize, TensorMeta, Traits, ValueMeta
from mixbackend.contracts.torch_compat import cuda_graph_obstacle
from mixbackend.runtime.regions import BoundRegion

_OBSTACLES = {
    OpTag.HIGHER_ORDER: "carries subgraphs",
    OpTag.COLLECTIVE: "talks to other processes",
    OpTag.DATA_DEPENDENT: "has a size that depends on values",
    OpTag.EFFECT: "has an effect outside of the GPU",
}


@dataclass(frozen=True)
class GraphPiece:
    """Neighbouring regions that run as one.

    Attributes:
        regions: their positions among the graph's regions.
        inputs: names of captured nodes that they read and do not compute, constants left out.
        outputs: names of captured nodes that they compute and somebody else reads.
        constants: names of constant inputs of the graph that they read.
        obstacle: why it cannot be recorded; empty if it can.
    """

    regions: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: tuple[str, ...] = ()
    obstacle: str = ""


def cut_pieces(
    graph: OpGraph, regions: Sequence[BoundRegion], obstacles: Sequence[str], constants: frozenset[str]
) -> tuple[GraphPiece, ...]:
    """Join neighbouring regions without obstacles.

    Args:
        graph: the captured graph.
        regions: all of them, in execution order.
        obstacles: for each of them, see ``obstacle_of``.
        constants: names of graph inputs whose tensors are the same at every call.
    """
    groups: list[list[int]] = []
    for number, region in enumerate(regions):
        joins = bool(groups) and not obstacles[number] and not obstacles[groups[-1][-1]]
        if joins and not _sized_by(graph, region, (regions[other] for other in groups[-1])):
            groups[-1].append(number)
        else:
            groups.append([number])
    return tuple(_piece(graph, regions, group, obstacles[group[0]], constants) for group in groups)


def _piece(
    graph: OpGraph, regions: Sequence[BoundRegion], group: Sequence[int], obstacle: str, constants: frozenset[str]
) -> GraphPiece:
    made = dict.fromkeys(name for number in group for name in regions[number].outputs)
    read = dict.fromkeys(name for number in group for name in regions[number].inputs if name not in made)
    members = set(group)
    elsewhere = {name for number, other in enumerate(regions) if number not in members for name in other.inputs}
    elsewhere.update(name for name in graph.outputs if name is not None)
    elsewhere.update(name for node in graph.nodes if node.is_symbolic for name in node.references())
    given = () if obstacle else tuple(name for name in read if name in constants)
    return GraphPiece(
        tuple(group),
        tuple(name for name in read if name not in given),
        tuple(name for name in made if name in elsewhere),
        given,
        obstacle,
    )


def _sized_by(graph: OpGraph, region: BoundRegion, earlier: Iterable[BoundRegion]) -> bool:
    """Whether a number that a region takes is read off a tensor that one of these makes."""
    made = {name for other in earlier for name in other.outputs}
    numbers = {node.name: node for node in graph.nodes if node.is_symbolic}
    waiting = [name for name in region.inputs if name in numbers]
    seen = set(waiting)
    while waiting:
        for name in numbers[waiting.pop()].references():
            if name in made:
                return True
            if name in numbers and name not in seen:
                seen.add(name)
                waiting.append(name)
    return False


def obstacle_of(bound: BoundRegion, owner: str, traits: Traits, static: frozenset[str], device: int) -> str:
    """Why a region cannot be recorded, in words; empty if it can.

    Args:
        owner: name of the backend that compiled it.
        traits: of that backend.
        static: names of graph inputs that are the same memory at every call.
        device: number of the GPU of the graph.
    """
    if not traits.capturable or not traits.uses_current_stream:
        return f"{owner} cannot be recorded"
    tagged = (f"{view.op} {_OBSTACLES[tag]}" for view in bound.region.views for tag in view.node.tags & set(_OBSTACLES))
    found = next(tagged, "") or _elsewhere(bound, device)
    if found:
        return found
    operator = cuda_graph_obstacle(bound.region.graph_module)
    if operator:
        return f"{operator} cannot be recorded"
    return _memory_obstacle(bound, static)


def _memory_obstacle(bound: BoundRegion, static: frozenset[str]) -> str:
    moving = [bound.inputs[place] for place in bound.region.written if bound.inputs[place] not in static]
    if moving or bound.entangled:
        return f"it writes into {', '.join(moving) or 'shared memory'}, which is elsewhere at every call"
    shared = [
        item.name
        for item in bound.region.outputs
        if item.alias_of is not None and bound.inputs[item.alias_of] not in static
    ]
    return f"{', '.join(shared)} shares memory with what comes in" if shared else ""


def _elsewhere(bound: BoundRegion, device: int) -> str:
    """A value that is not the GPU's, nor an integer."""
    metas: list[tuple[str, ValueMeta]] = [(item.name, item.meta) for item in bound.region.inputs]
    for view in bound.region.views:
        metas += [(item.name, item.meta) for item in view.inputs]
        metas += [(view.node.name, meta) for meta in view.outputs]
    for name, meta in metas:
        if isinstance(meta, TensorMeta) and (meta.device.type, meta.device.index or 0) != ("cuda", device):
            return f"{name} is on {meta.device}"
        if isinstance(meta, SymbolicSize) and not meta.expression.is_integer:
            return f"{name} is a number that is no integer"
    return ""


def device_of(graph: OpGraph) -> int | None:
    """Number of the one GPU that a graph works on; ``None`` if there is none, or more than one."""
    metas: list[ValueMeta] = [item.meta for item in graph.inputs]
    metas += [meta for node in graph.nodes for meta in node.outputs]
    numbers = {meta.device.index or 0 for meta in metas if isinstance(meta, TensorMeta) and meta.device.type == "cuda"}
    return numbers.pop() if len(numbers) == 1 else None


def told(pieces: Sequence[GraphPiece], regions: Sequence[BoundRegion]) -> str:
    """How a graph is recorded, in words."""
    recorded = [piece for piece in pieces if not piece.obstacle]
    inside = sum(len(piece.regions) for piece in recorded)
    parts = [f"{inside} of {len(regions)} regions in {len(recorded)} CUDA graphs"]
    reasons: Mapping[str, list[str]] = {piece.obstacle: [] for piece in pieces if piece.obstacle}
    for piece in pieces:
        if piece.obstacle:
            reasons[piece.obstacle] += [regions[number].planned.id for number in piece.regions]
    parts += [f"{', '.join(names)} between them: {reason}" for reason, names in reasons.items()]
    return "; ".join(parts)
