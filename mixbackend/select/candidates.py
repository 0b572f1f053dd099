"""Candidates: the plans of one graph that are worth measuring against one another.

Place: first step of ``tuner``. Input: a graph as it will be placed, and a planner. Output: candidates with estimates.
What is tried: the planner's own mixture, and for every pool of threads a mixture of those that share it, in each layout
of images; the mixture of all backends that save anything, every backend alone, and the mixture without each backend
that it uses, in the layout that is planned cheaper (as traced for backends that take nothing else).
Invariants: the planner's mixture comes first, the others by their estimates; no two have equal plans, and no mixture
with fewer backends is the planner's own but for trifles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch.fx

from mixbackend.contracts import Backend, OpGraph, Phase, PlacementError, Plan
from mixbackend.graph.describe import PlaceholderRole, describe
from mixbackend.plan.choice import DEFAULT, Choice
from mixbackend.plan.layouts import channels_last_copy
from mixbackend.plan.planner import Planner
from mixbackend.reporting.records import AS_TRACED, CHANNELS_LAST
from mixbackend.select.race import Candidate

Content = tuple[str, frozenset[tuple[object, ...]]]
"""What makes two plans of one graph the same: the layout; the owner, ops and patterns of every region."""


def in_layouts(
    graph_module: torch.fx.GraphModule, phase: Phase, roles: Mapping[str, PlaceholderRole]
) -> dict[str, OpGraph]:
    """A graph in each layout of images that it can run in.

    Args:
        graph_module: normalised, its constants split off; it is only read.
        phase, roles: as ``describe`` takes them.
    """
    graphs = {AS_TRACED: describe(graph_module, phase, "tuning", roles)}
    relaid = channels_last_copy(graph_module) if phase == "inference" else None
    if relaid is not None:
        graphs[CHANNELS_LAST] = describe(relaid.module, phase, "tuning", roles)
    return graphs


def find_candidates(
    graphs: Mapping[str, OpGraph], planner: Planner, beside: Sequence[Choice] = ()
) -> dict[Content, Candidate]:
    """The candidates of a graph, by what their plans are.

    Args:
        graphs: it, by layout.
        planner: places it.
        beside: further choices, each for the layout that it names.
    """
    plans = {layout: planner.place(graph) for layout, graph in graphs.items()}
    first = min(plans, key=lambda layout: plans[layout].estimated_s)
    found = {content_of(first, plans[first]): Candidate(_in(first, graphs, DEFAULT), plans[first].estimated_s)}
    others: list[tuple[Content, Candidate]] = []
    for choice, layouts in _choices(planner.backends, plans[first]):
        planned = _plans(choice, {layout: graphs[layout] for layout in layouts if layout in graphs}, planner)
        ranked = sorted(planned, key=lambda layout: planned[layout].estimated_s)
        for layout in ranked if choice in (DEFAULT, *_pools(planner.backends)) else ranked[:1]:
            plan = planned[layout]
            if choice.backends and _like(plan, plans[layout]):
                continue
            others.append((content_of(layout, plan), Candidate(_in(layout, graphs, choice), plan.estimated_s)))
    for choice in beside:
        layout = choice.layout or AS_TRACED
        plan = planner.place(graphs[layout], choice=choice)
        others.append((content_of(layout, plan), Candidate(choice, plan.estimated_s)))
    for content, candidate in sorted(others, key=lambda item: item[1].estimated_s):
        found.setdefault(content, candidate)
    return found


def content_of(layout: str, plan: Plan) -> Content:
    """What a plan is, whatever it is estimated to take."""
    return layout, frozenset((region.backend, region.nodes, region.matches) for region in plan.regions)


TRIFLE = 0.01
"""A mixture that is estimated to lose no more than this without a backend hardly used it."""
_LAYOUTS = (AS_TRACED, CHANNELS_LAST)


def _choices(backends: Sequence[Backend], plan: Plan) -> Iterator[tuple[Choice, Sequence[str]]]:
    """Choices, each with the layouts that it is worth planning in."""
    yield DEFAULT, _LAYOUTS
    yield Choice(every=True), _LAYOUTS
    yield from ((choice, _LAYOUTS) for choice in _pools(backends))
    for backend in backends:
        yield Choice(single=backend.name), (AS_TRACED,) if backend.traits().row_major else _LAYOUTS
    able = [backend.name for backend in backends if not backend.traits().reference]
    for used in dict.fromkeys(region.backend for region in plan.regions):
        others = tuple(name for name in able if name != used)
        if others and len(others) < len(able):
            yield Choice(others), _LAYOUTS


def _pools(backends: Sequence[Backend]) -> tuple[Choice, ...]:
    """A choice per pool of threads that several backends share."""
    pools: dict[str, list[str]] = {}
    for backend in backends:
        if not backend.traits().reference:
            pools.setdefault(backend.traits().thread_pool, []).append(backend.name)
    return tuple(Choice(tuple(names)) for names in pools.values() if len(names) > 1)


def _plans(choice: Choice, graphs: Mapping[str, OpGraph], planner: Planner) -> dict[str, Plan]:
    """A plan per layout; none where a rule requires a backend that does not take part."""
    try:
        return {layout: planner.place(graph, choice=choice) for layout, graph in graphs.items()}
    except PlacementError:
        return {}


def _like(plan: Plan, other: Plan) -> bool:
    return plan.estimated_s <= (1.0 + TRIFLE) * other.estimated_s


def _in(layout: str, graphs: Mapping[str, OpGraph], choice: Choice) -> Choice:
    """The choice with its layout, if there is one to choose."""
    return replace(choice, layout=layout if len(graphs) > 1 else "")
