"""Eager splitting: regions of eager cut where a CUDA graph would end, so that the rest of them can be recorded.

Place: between the plan and the cut, where calls are recorded. Input: a graph and a legal plan. Output: a legal plan.
Eager runs every operator on every device: what the processor computes in a graph on a GPU may lie in the middle of a
region that is recorded otherwise. Eager's regions can be cut anywhere: they are run operator by operator.
Invariants: operators keep their order and their owner; only eager's regions change; results of operators that are taken
apart stay with them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import groupby

from mixbackend.contracts import OpGraph, Plan, PlannedRegion
from mixbackend.execute.cuda_graphs.graph_segments import why_not_recorded
from mixbackend.partitioner.judging import GETITEM


def split_eager_regions(graph: OpGraph, plan: Plan, references: Collection[str], device: int) -> Plan:
    """The plan with what cannot be recorded in regions of its own.

    Args:
        references: names of the backends that run operator by operator.
        device: number of the GPU of the graph.
    """
    parts = [
        part
        for region in plan.regions
        for part in (_parts(graph, region, device) if region.backend in references else [region])
    ]
    if len(parts) == len(plan.regions):
        return plan
    return replace(plan, regions=tuple(replace(part, id=f"r{place}") for place, part in enumerate(parts)))


def _parts(graph: OpGraph, region: PlannedRegion, device: int) -> list[PlannedRegion]:
    if region.copies or region.matches:
        return [region]
    fit: dict[str, bool] = {}
    for name in region.nodes:
        view = graph.view(name)
        source = view.node.references()[0] if view.op == GETITEM else name
        fit[name] = fit[source] if source in fit else not why_not_recorded(view, device)
    groups = [tuple(names) for _, names in groupby(region.nodes, key=fit.__getitem__)]
    share = region.estimated_s / len(region.nodes)
    return [replace(region, nodes=names, estimated_s=share * len(names)) for names in groups]
