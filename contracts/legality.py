"""The one check of a plan against its graph.

Place: called by the partitioner's search, by the pipeline before compiling, by tests and by whoever loads a plan.
Input: an ``OpGraph`` and regions. Output: a list of problems, empty if the plan is legal.
A plan is legal if every placed node has exactly one owner, regions list their nodes in graph order, copies are cheap
and pure, and the quotient graph (regions as nodes, data and effect edges between them) has no cycle and agrees with
the order in which the regions are listed.
Complexity: linear in nodes and edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import networkx as nx

from mixbackend.contracts.graph import OpGraph
from mixbackend.contracts.plan import Plan, PlannedRegion


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


def find_problems(graph: OpGraph, regions: Sequence[PlannedRegion]) -> list[str]:
    """Everything that makes these regions illegal for this graph."""
    owner: dict[str, str] = {}
    problems: list[str] = []
    position = {node.name: index for index, node in enumerate(graph.placed_nodes)}
    for region in regions:
        problems += _region_problems(region, position)
        for name in region.nodes:
            if name in owner:
                problems.append(f"node %{name} is owned by {owner[name]} and {region.id}")
            owner[name] = region.id
    problems += [f"node %{name} is in no region" for name in position if name not in owner]
    return problems or _order_problems(graph, regions, owner)


def _region_problems(region: PlannedRegion, position: dict[str, int]) -> list[str]:
    unknown = [name for name in (*region.nodes, *region.copies) if name not in position]
    if unknown:
        return [f"{region.id} names nodes that are not in the graph: {', '.join(unknown)}"]
    if not region.nodes:
        return [f"{region.id} is empty"]
    places = [position[name] for name in region.nodes]
    return [] if places == sorted(places) else [f"{region.id} does not list its nodes in graph order"]


def _order_problems(graph: OpGraph, regions: Sequence[PlannedRegion], owner: dict[str, str]) -> list[str]:
    homes = {name: [region_id] for name, region_id in owner.items()}
    for region in regions:
        for name in region.copies:
            homes[name].append(region.id)
    quotient: nx.DiGraph = nx.DiGraph()
    quotient.add_nodes_from(region.id for region in regions)
    for earlier, later in dependencies(graph):
        quotient.add_edges_from((owner[earlier], home) for home in homes[later] if home not in homes[earlier])
    rank = {region.id: index for index, region in enumerate(regions)}
    late = [f"{a} is listed after {b}, which needs it" for a, b in quotient.edges if rank[a] > rank[b]]
    if not late:
        return []
    if nx.is_directed_acyclic_graph(quotient):
        return late
    cycle = " -> ".join(edge[0] for edge in nx.find_cycle(quotient))
    return [f"regions depend on each other: {cycle}"]


def check_plan(graph: OpGraph, plan: Plan) -> None:
    """Raise if a plan is not legal for a graph.

    Raises:
        PlacementError: with every problem.
    """
    from mixbackend.contracts.errors import PlacementError

    problems = find_problems(graph, plan.regions)
    if problems:
        raise PlacementError(
            what=f"the plan is not legal for graph {graph.id}: " + "; ".join(problems[:20]),
            hint="this is a fault of the partitioner or of an edited plan file; report it with MIXBACKEND_DUMP",
        )
