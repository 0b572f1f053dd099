"""Substitutes: where regions of a package go if their backend cannot be used here.

Place: asked by ``plans`` before a plan is held against its graph. Input: the plan as it was made, the graph, what is
here. Output: plans to try, the best first.
Method: a region goes to the first of its runners-up that is here and compiles; what that refuses of it goes to the
reference. Pieces are runs of the region's nodes in their order, so that no piece waits for a later one. Last of all,
the whole region goes to the reference.
Invariants: all other regions stay as they are, so that their artifacts fit. Nothing is searched or priced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby

from mixbackend.contracts import Backend, OpGraph, Plan, PlannedRegion, Supported
from mixbackend.package.conditions import Here
from mixbackend.package.model import Bucket
from mixbackend.partitioner.judging import source_of_getitem
from mixbackend.partitioner.plan_canonical import local_names
from mixbackend.registry import FALLBACK

_FREE = frozenset({"view", "copy", "factory"})


def adapted(bucket: Bucket, plan: Plan, graph: OpGraph, here: Here) -> list[Plan]:
    """See the module's docstring; all plans are canonical."""
    missing = [region for region in plan.regions if region.backend not in here.backends and region.backend != FALLBACK]
    if not missing:
        return [plan]
    lost = {region.id for region in missing}
    names = local_names(graph)
    able = {name: backend for name, backend in here.backends.items() if name not in here.loads_only}
    pieces = {region.id: list(_pieces(region, bucket, graph, names, able)) for region in missing}
    moved = [item for region in plan.regions for item in (pieces[region.id] if region.id in lost else [region])]
    last = [_on(region, FALLBACK) if region.id in lost else region for region in plan.regions]
    return [replace(plan, regions=tuple(regions)) for regions in (moved, last)]


def _on(region: PlannedRegion, backend: str) -> PlannedRegion:
    """A region on another backend: patterns were the old one's."""
    return replace(region, backend=backend, matches=())


def _pieces(
    region: PlannedRegion, bucket: Bucket, graph: OpGraph, names: Mapping[str, str], able: Mapping[str, Backend]
) -> Iterator[PlannedRegion]:
    runner_up = next((name for name in bucket.runners_up.get(region.id, ()) if name in able), None)
    if runner_up is None or not set(region.nodes) <= set(names):
        yield _on(region, FALLBACK)
        return
    takes = _taken(region, graph, names, able[runner_up])
    order = sorted(region.nodes, key=lambda name: int(name.rpartition("@")[2]))
    runs = [(taken, tuple(run)) for taken, run in groupby(order, key=takes.__getitem__)]
    if len(runs) == 1:
        yield _on(region, runner_up if runs[0][0] else FALLBACK)
        return
    for number, (taken, nodes) in enumerate(runs):
        share = region.estimated_s * len(nodes) / len(order)
        backend = runner_up if taken else FALLBACK
        # Copies of cheap ops of other regions stay with the first piece that may need them: with each.
        yield PlannedRegion(f"{region.id}.{number}", backend, nodes, region.copies, (), share)


def _taken(region: PlannedRegion, graph: OpGraph, names: Mapping[str, str], backend: Backend) -> dict[str, bool]:
    """Which nodes of a region a backend takes; runs of views alone it does not get."""
    found: dict[str, bool] = {}
    locals_ = {names[name]: name for name in region.nodes}
    for name in sorted(region.nodes, key=lambda name: int(name.rpartition("@")[2])):
        source = source_of_getitem(graph.node_by_name[names[name]])
        if source:
            found[name] = found.get(locals_.get(source, ""), False)
        else:
            found[name] = isinstance(backend.judge(graph.view(names[name])), Supported)
    for taken, run in groupby(list(found), key=found.__getitem__):
        nodes = list(run)
        if taken and all(graph.view(names[name]).op_class in _FREE for name in nodes):
            found.update(dict.fromkeys(nodes, False))
    return found
