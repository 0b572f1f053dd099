"""Eager splitting: regions of eager cut where a CUDA graph would end, so that the rest of them can be recorded.

Place: between the plan and the cut, where calls are recorded. Input: a graph and a legal plan. Output: a legal plan.
Eager runs every operator on every device: what the processor computes in a graph on a GPU may lie in the middle of a
region that is recorded otherwise. Eager's regions can be cut anywhere: they are run operator by operator.
Invariants: operators keep their order and their owner; only eager's regions change; results of operators that are taken
apart stay with them, and an exchange among ranks that cannot be recorded whole is not recorded at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import groupby

from mixbackend.contracts import OpGraph, Plan, PlannedRegion
from mixbackend.execute.cuda_graphs.collectives import blocked_nodes, exchanges_of
from mixbackend.execute.cuda_graphs.graph_segments import why_not_recorded
from mixbackend.partitioner.judging import GETITEM


def split_eager_regions(graph: OpGraph, plan: Plan, references: Collection[str], device: int) -> Plan:
    """The plan with what cannot be recorded in regions of its own.

    Args:
        references: names of the backends that run operator by operator.
        device: number of the GPU of the graph.
    """
    asked = {name for region in plan.regions if region.backend in references for name in region.nodes}
    fit = _fit_nodes(graph, device, asked)
    parts = [
        part for region in plan.regions for part in (_parts(region, fit) if region.backend in references else [region])
    ]
    if len(parts) == len(plan.regions):
        return plan
    return replace(plan, regions=tuple(replace(part, id=f"r{place}") for place, part in enumerate(parts)))


def _fit_nodes(graph: OpGraph, device: int, asked: Collection[str]) -> dict[str, bool]:
    """Whether each of these nodes can be recorded, as far as that hangs on nodes and on exchanges among ranks."""
    exchanges = exchanges_of(graph, device)
    blocked = blocked_nodes(exchanges)
    fit: dict[str, bool] = {}
    names = [node.name for node in graph.placed_nodes if exchanges or node.name in asked]
    for name in names:
        view = graph.view(name)
        source = view.node.references()[0] if view.op == GETITEM else name
        known = fit.get(source)
        fit[name] = known if known is not None else name not in blocked and not why_not_recorded(view, device)
    place = {name: number for number, name in enumerate(names)}
    for exchange in exchanges:
        inside = names[place[exchange.nodes[0]] : place[exchange.nodes[-1]] + 1]
        if not all(fit[name] for name in inside):
            fit.update(dict.fromkeys(exchange.nodes, False))
    return fit


def _parts(region: PlannedRegion, fit: Mapping[str, bool]) -> list[PlannedRegion]:
    if region.copies or region.matches:
        return [region]
    groups = [tuple(names) for _, names in groupby(region.nodes, key=fit.__getitem__)]
    share = region.estimated_s / len(region.nodes)
    return [replace(region, nodes=names, estimated_s=share * len(names)) for names in groups]
