"""The one check of a plan against its graph.

Place: called by the partitioner's search, by the pipeline before compiling, by tests and by code that loads a plan.
Input: an ``OpGraph`` and regions. Output: a list of problems, empty if the plan is legal.
A plan is legal if every placed node has exactly one owner, regions have names of their own and list their nodes in
graph order, copies are cheap and pure (views, parts of results, constants made from nothing), matches lie inside their
region and apart from one another, a region that writes into storage which several of its inputs share is on a backend
that takes effects, and the quotient graph (regions as nodes, data and effect edges between them) has no cycle and
agrees with the order in which the regions are listed.
Complexity: linear in nodes and edges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from mixbackend.contracts.graph import OpGraph
from mixbackend.contracts.ops import OpNode, OpTag
from mixbackend.contracts.plan import Plan, PlannedRegion
from mixbackend.contracts.tensors import TensorMeta

RUNS_ONCE = frozenset(
    {
        OpTag.RANDOM,
        OpTag.MUTATES,
        OpTag.COLLECTIVE,
        OpTag.HIGHER_ORDER,
        OpTag.EFFECT,
        OpTag.DATA_DEPENDENT,
    }
)
"""Tags of ops that a plan may not have computed twice."""


def dependencies(graph: OpGraph) -> Iterator[tuple[str, str]]:
    """(earlier, later) pairs of placed nodes: data edges, effect edges, and paths of both through numbers."""
    placed = {node.name for node in graph.placed_nodes}
    ordered: dict[str, list[str]] = {}
    for first, second in graph.effects:
        ordered.setdefault(second, []).append(first)
    behind: dict[str, tuple[str, ...]] = {}
    for node in graph.nodes:
        sources: dict[str, None] = {}
        for name in (*node.references(), *ordered.get(node.name, ())):
            sources.update({name: None} if name in placed else dict.fromkeys(behind.get(name, ())))
        if node.name in placed:
            yield from ((source, node.name) for source in sources)
        else:
            behind[node.name] = tuple(sources)


def entangled_writes(graph: OpGraph, names: Collection[str]) -> tuple[str, ...]:
    """Of the nodes of a region, those that write into storage which comes in through several of its inputs.

    A region's inputs are values of their own to a backend, unless it takes effects: it may read one of them later than
    it writes into another. Views that the region makes itself are seen to share what they are made of.
    """
    storage, node_by_name = graph.storage_of, graph.node_by_name
    writes = [name for name in names if OpTag.MUTATES in node_by_name[name].tags]
    if not writes:
        return ()
    inside = frozenset(names)
    read = {source for name in names for source in node_by_name[name].references() if source not in inside}
    shared = Counter(storage.get(source, source) for source in read)
    return tuple(name for name in writes if shared[storage.get(name, name)] > 1)


def find_problems(graph: OpGraph, regions: Sequence[PlannedRegion], takes_effects: Collection[str]) -> list[str]:
    """Everything that makes these regions illegal for this graph.

    Args:
        graph: that they are regions of.
        regions: in the order in which they run.
        takes_effects: names of the backends that run effects as eager would, see ``Traits.takes_effects``.
    """
    owner: dict[str, str] = {}
    problems: list[str] = []
    position = {node.name: index for index, node in enumerate(graph.placed_nodes)}
    for region in regions:
        problems += _region_problems(graph, region, position, takes_effects)
        for name in region.nodes:
            if name in owner:
                problems.append(f"node %{name} is owned by {owner[name]} and {region.id}")
            owner[name] = region.id
    problems += [f"node %{name} is in no region" for name in position if name not in owner]
    names = Counter(region.id for region in regions)
    problems += [f"two regions are called {name}" for name, count in names.items() if count > 1]
    return problems or _order_problems(graph, regions, owner)


def _region_problems(
    graph: OpGraph, region: PlannedRegion, position: dict[str, int], takes_effects: Collection[str]
) -> list[str]:
    matched = [name for _, names in region.matches for name in names]
    unknown = [name for name in dict.fromkeys((*region.nodes, *region.copies, *matched)) if name not in position]
    if unknown:
        return [f"{region.id} names nodes that are not in the graph: {', '.join(unknown)}"]
    if not region.nodes:
        return [f"{region.id} is empty"]
    places = [position[name] for name in region.nodes]
    problems = [] if places == sorted(places) else [f"{region.id} does not list its nodes in graph order"]
    problems += [*_copy_problems(graph, region), *_match_problems(graph, region)]
    if region.backend not in takes_effects:
        writes = entangled_writes(graph, (*region.nodes, *region.copies))
        problems += [f"{region.id} writes by %{name} into storage that several of its inputs share" for name in writes]
    return problems


def _copy_problems(graph: OpGraph, region: PlannedRegion) -> Iterator[str]:
    owned = set(region.nodes)
    for name, count in Counter(region.copies).items():
        node = graph.node_by_name[name]
        if count > 1:
            yield f"{region.id} copies %{name} twice"
        if name in owned:
            yield f"{region.id} copies %{name}, which it owns"
        once = ", ".join(sorted(tag.value for tag in node.tags & RUNS_ONCE))
        if once:
            yield f"{region.id} copies %{name} ({node.op}), which may run once only: {once}"
        elif not _is_cheap(graph, node):
            yield f"{region.id} copies %{name} ({node.op}), which computes"


def _match_problems(graph: OpGraph, region: PlannedRegion) -> Iterator[str]:
    inside = {*region.nodes, *region.copies}
    for pattern, names in region.matches:
        if not names:
            yield f"{region.id} matches {pattern} on no node"
        yield from (
            f"{region.id} matches {pattern} on %{name}, which is not in it" for name in names if name not in inside
        )
    counts = Counter(name for _, names in region.matches for name in dict.fromkeys(names))
    for name, count in counts.items():
        if count > 1 and not _is_cheap(graph, graph.node_by_name[name]):
            yield f"%{name} is in two matches of {region.id}"


def _is_cheap(graph: OpGraph, node: OpNode) -> bool:
    """Whether a node moves nothing, or is made from nothing: what may be there twice."""
    if OpTag.VIEW in node.tags or node.op == "getitem":
        return True
    reads = (graph.value(name).meta for name in node.references())
    return not any(isinstance(meta, TensorMeta) for meta in reads)


def _order_problems(graph: OpGraph, regions: Sequence[PlannedRegion], owner: dict[str, str]) -> list[str]:
    homes = {name: [region_id] for name, region_id in owner.items()}
    for region in regions:
        for name in region.copies:
            homes[name].append(region.id)
    after: dict[str, dict[str, None]] = {region.id: {} for region in regions}
    for earlier, later in dependencies(graph):
        after[owner[earlier]].update((home, None) for home in homes[later] if home not in homes[earlier])
    rank = {region.id: index for index, region in enumerate(regions)}
    late = [f"{a} is listed after {b}, which needs it" for a, ends in after.items() for b in ends if rank[a] > rank[b]]
    if not late:
        return []
    # Only here: most plans are legal, and importing it takes as long as planning a small graph.
    import networkx as nx

    quotient: nx.DiGraph = nx.DiGraph((start, end) for start, ends in after.items() for end in ends)
    if nx.is_directed_acyclic_graph(quotient):
        return late
    cycle = " -> ".join(edge[0] for edge in nx.find_cycle(quotient))
    return [f"regions depend on each other: {cycle}"]


def check_plan(graph: OpGraph, plan: Plan, takes_effects: Collection[str]) -> None:
    """Raise if a plan is not legal for a graph; arguments as of ``find_problems``.

    Raises:
        PlacementError: with every problem.
    """
    from mixbackend.contracts.errors import PlacementError

    problems = find_problems(graph, plan.regions, takes_effects)
    if problems:
        raise PlacementError(
            what=f"the plan is not legal for graph {graph.id}: " + "; ".join(problems[:20]),
            hint="this is a fault of the partitioner or of an edited plan file; report it with MIXBACKEND_DUMP",
        )
