"""Graph segments: which regions of a graph are recorded together as one CUDA graph, and why the others are not.

Place: below ``recorded``. Input: a captured graph, its regions in execution order, which backends own them.
Output: segments in execution order: runs of neighbouring regions that can be recorded, and single ones that cannot.
A recording replays kernels with the very pointers that they had: so all memory must be the GPU's, sizes must be those
of the recording, and nothing may wait for a result on the way. What cannot be recorded splits the graph, and so does an
exchange among ranks that would be in two segments, see ``collectives``. Results that
are views of what comes into a recording are not its own: they are made beside it, of the tensors of the call.
Invariants: every region is in one segment, unless nothing is to run in it; the order stays; numbers that a segment
takes are known before it runs.
Non-goals: recording.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mixbackend.contracts import OpGraph, OpTag, OpView, SymbolicSize, TensorMeta, Traits, ValueMeta
from mixbackend.contracts.torch_compat import cuda_graph_obstacle
from mixbackend.execute.cuda_graphs.collectives import Exchange, groups_of, torn
from mixbackend.graph.aliases import only_views, returned_views
from mixbackend.graph.regions import BoundRegion

_OBSTACLES = {
    OpTag.HIGHER_ORDER: "carries subgraphs",
    OpTag.DATA_DEPENDENT: "has a size that depends on values",
    OpTag.EFFECT: "has an effect outside of the GPU",
}
_TORN = "another part of its exchange among ranks is elsewhere"


@dataclass(frozen=True)
class GraphSegment:
    """Neighbouring regions that run as one.

    Attributes:
        regions: their positions among the graph's regions.
        inputs: names of captured nodes that they read and do not compute, constants left out.
        outputs: names of captured nodes that they compute and something outside reads.
        members: names of captured nodes that they run, copies included.
        constants: names of constant inputs of the graph that they read.
        obstacle: why it cannot be recorded; empty if it can.
        views: names of captured nodes, in graph order, where nothing is to run but these: views of the inputs.
        groups: names of the process groups of the collectives that it runs.
    """

    regions: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    members: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    obstacle: str = ""
    views: tuple[str, ...] = ()
    groups: frozenset[str] = frozenset()

    @property
    def is_recorded(self) -> bool:
        """Whether it becomes a CUDA graph."""
        return not self.obstacle and not self.views


def cut_segments(
    graph: OpGraph,
    regions: Sequence[BoundRegion],
    obstacles: Sequence[str],
    constants: frozenset[str],
    exchanges: Sequence[Exchange] = (),
) -> tuple[GraphSegment, ...]:
    """Join neighbouring regions without obstacles.

    Args:
        graph: the captured graph.
        regions: all of them, in execution order.
        obstacles: for each of them, see ``obstacle_of``.
        constants: names of graph inputs that are the same tensors at every call.
        exchanges: of the graph, each of which is in one recording or in none.
    """
    groups, obstacles = _groups(graph, regions, obstacles, exchanges)
    returned = returned_views(graph).outputs
    whole = (_piece(graph, regions, group, obstacles[group[0]], constants, returned) for group in groups)
    running = (segment for segment in whole if segment.outputs or not only_views(graph, segment.members))
    return tuple(part for segment in running for part in _without_views(graph, regions, segment))


def _groups(
    graph: OpGraph, regions: Sequence[BoundRegion], obstacles: Sequence[str], exchanges: Sequence[Exchange]
) -> tuple[list[list[int]], Sequence[str]]:
    """Numbers of regions that are joined, and the obstacles with those of exchanges that would be torn apart."""
    homes: dict[str, list[int]] = {}
    for number, region in enumerate(regions):
        for name in region.members:
            homes.setdefault(name, []).append(number)
    while True:
        groups = _joined(graph, regions, obstacles)
        pieces = {number: place for place, group in enumerate(groups) for number in group if not obstacles[number]}
        apart = torn(exchanges, homes, pieces)
        if not apart:
            return groups, obstacles
        obstacles = [_TORN if number in apart else obstacle for number, obstacle in enumerate(obstacles)]


def _joined(graph: OpGraph, regions: Sequence[BoundRegion], obstacles: Sequence[str]) -> list[list[int]]:
    groups: list[list[int]] = []
    for number, region in enumerate(regions):
        joins = bool(groups) and not obstacles[number] and not obstacles[groups[-1][-1]]
        if joins and not _sized_by(graph, region, (regions[other] for other in groups[-1])):
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def _without_views(graph: OpGraph, regions: Sequence[BoundRegion], segment: GraphSegment) -> list[GraphSegment]:
    """A segment that is to be recorded, and a second one for its results that are views of what comes in."""
    if segment.obstacle:
        return [segment]
    moving = {name for name in segment.inputs if name not in graph.input_by_name or not _is_weight(graph, name)}
    chains = {name: chain for name in segment.outputs if (chain := _views_from(graph, name, moving)) is not None}
    if not chains:
        return [segment]
    made = {name for chain in chains.values() for name in chain}
    nodes = [node for node in graph.nodes if node.name in made]
    read = dict.fromkeys(name for node in nodes for name in node.references() if name not in made)
    names = tuple(node.name for node in nodes)
    views = GraphSegment((), tuple(read), tuple(chains), names, views=names)
    outputs = tuple(name for name in segment.outputs if name not in chains)
    runs = bool(outputs) or any(regions[number].region.written for number in segment.regions)
    return [replace(segment, outputs=outputs), views] if runs else [views]


def _is_weight(graph: OpGraph, name: str) -> bool:
    return graph.input_by_name[name].role.is_weight


def _views_from(graph: OpGraph, name: str, sources: Collection[str]) -> list[str] | None:
    """Names of the nodes that make a value out of one of these without computing; ``None`` if it is none such."""
    chain: list[str] = []
    while name not in sources:
        node = graph.node_by_name.get(name)
        source = node.aliased() if node is not None and OpTag.MUTATES not in node.tags else None
        if source is None:
            return None
        chain.append(name)
        name = source
    return chain


def _piece(
    graph: OpGraph,
    regions: Sequence[BoundRegion],
    group: Sequence[int],
    obstacle: str,
    constants: frozenset[str],
    returned: frozenset[str],
) -> GraphSegment:
    made = dict.fromkeys(name for number in group for name in regions[number].outputs)
    read = dict.fromkeys(name for number in group for name in regions[number].inputs if name not in made)
    members = set(group)
    elsewhere = {name for number, other in enumerate(regions) if number not in members for name in other.inputs}
    elsewhere.update(returned)
    elsewhere.update(name for node in graph.nodes if node.is_symbolic for name in node.references())
    given = () if obstacle else tuple(name for name in read if name in constants)
    names = tuple(name for number in group for name in regions[number].members)
    return GraphSegment(
        tuple(group),
        tuple(name for name in read if name not in given),
        tuple(name for name in made if name in elsewhere),
        names,
        given,
        obstacle,
        groups=groups_of(graph.node_by_name[name] for name in names),
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


def obstacle_of(
    bound: BoundRegion, owner: str, traits: Traits, static: frozenset[str], device: int, blocked: Mapping[str, str]
) -> str:
    """Why a region cannot be recorded, in words; empty if it can.

    Args:
        owner: name of the backend that compiled it.
        traits: of that backend.
        static: names of graph inputs that are the same memory at every call.
        device: number of the GPU of the graph.
        blocked: see ``blocked_nodes``.
    """
    if not traits.capturable or not traits.uses_current_stream:
        return f"{owner} cannot be recorded"
    given = ((item.name, item.meta) for item in bound.region.inputs)
    reasons = [_elsewhere(given, device), *(blocked.get(name, "") for name in bound.members)]
    reasons += [why_not_recorded(view, device) for view in bound.region.views]
    found = next(filter(None, reasons), "")
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
    return ""


def why_not_recorded(view: OpView, device: int) -> str:
    """Why an operator cannot be recorded, in words; empty if nothing that is known of it is against that.

    Collectives are judged with all of their graph, see ``collectives``.
    """
    tagged = (f"{view.op} {reason}" for tag, reason in _OBSTACLES.items() if tag in view.node.tags)
    values = [(item.name, item.meta) for item in view.inputs] + [(view.node.name, meta) for meta in view.outputs]
    return next(tagged, "") or _elsewhere(values, device)


def _elsewhere(values: Iterable[tuple[str, ValueMeta]], device: int) -> str:
    """A value that is not the GPU's, nor an integer."""
    for name, meta in values:
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


def describe_segments(segments: Sequence[GraphSegment], regions: Sequence[BoundRegion]) -> str:
    """How a graph is recorded, in words."""
    recorded = [segment for segment in segments if segment.is_recorded]
    inside = sum(len(segment.regions) for segment in recorded)
    parts = [f"{inside} of {len(regions)} regions in {len(recorded)} CUDA graphs"]
    reasons: Mapping[str, list[str]] = {segment.obstacle: [] for segment in segments if segment.obstacle}
    for segment in segments:
        if segment.obstacle:
            reasons[segment.obstacle] += [regions[number].planned.id for number in segment.regions]
    parts += [f"{', '.join(names)} between them: {reason}" for reason, names in reasons.items()]
    return "; ".join(parts)
