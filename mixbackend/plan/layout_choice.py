"""Layout choice: the traced graph or the same with channels-last convolutions, whichever is planned cheaper.

Place: between capture and placement; the placed graph keeps the choice through its repairs.
Input: a normalised captured graph. Output: ``LaidOutGraph``: the graph to run, its description, and its plan.
Both graphs are described, judged and placed like any other: what a conversion costs is the price of the ``clone`` that
it is. A graph without convolutions on other than channels-last images is described once and planned later.
Invariants: deterministic; the traced graph wins ties. Forward and backward graphs come as the joint graph left them:
their layouts must agree on the tensors that one saves for the other, so ``plan.rematerialization`` chooses for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch.fx

from mixbackend.contracts import OpGraph, Phase, Plan
from mixbackend.contracts.rehint import Hints, with_hints
from mixbackend.graph.describe import PlaceholderRole, describe
from mixbackend.plan.choice import DEFAULT, Choice
from mixbackend.plan.layouts import Relaid, channels_last_copy
from mixbackend.plan.planner import Planner
from mixbackend.reporting.records import AS_TRACED, CHANNELS_LAST, LayoutRecord


@dataclass(frozen=True)
class LaidOutGraph:
    """The graph that will run, in its layout.

    Attributes:
        module: the graph.
        graph: its description.
        plan: for it, ``None`` if there was nothing to choose.
        record: for the report.
        other: the plan for the layout that was not chosen, ``None`` if there was nothing to choose.
    """

    module: torch.fx.GraphModule
    graph: OpGraph
    plan: Plan | None = None
    record: LayoutRecord = field(default_factory=LayoutRecord)
    other: Plan | None = None


def choose_layout(
    graph_module: torch.fx.GraphModule,
    phase: Phase,
    graph_id: str,
    roles: Mapping[str, PlaceholderRole],
    planner: Planner,
    choice: Choice = DEFAULT,
    hints: Hints | None = None,
) -> LaidOutGraph:
    """Describe a graph in the layout that is planned cheapest, or in the one that was chosen.

    Args:
        graph_module: normalised captured graph; it is left as it is.
        phase, graph_id, roles: as ``describe`` takes them.
        planner: backends and costs.
        choice: what tuning found best.
        hints: sizes to plan for, ``None`` for those of the captured run.
    """
    if choice.plan is not None and choice.layout:
        return in_layout(graph_module, phase, graph_id, roles, choice.layout, hints)
    graph = with_hints(describe(graph_module, phase, graph_id, roles), hints or {})
    relaid = channels_last_copy(graph_module) if phase == "inference" else None
    if relaid is None:
        return LaidOutGraph(graph_module, graph)
    other = with_hints(describe(relaid.module, phase, graph_id, roles), hints or {})
    plans = planner.place(graph, choice=choice), planner.place(other, choice=choice)
    seconds = (AS_TRACED, plans[0].estimated_s), (CHANNELS_LAST, plans[1].estimated_s)
    cheaper = CHANNELS_LAST if plans[1].estimated_s < plans[0].estimated_s else AS_TRACED
    if (choice.layout or cheaper) == CHANNELS_LAST:
        record = LayoutRecord(CHANNELS_LAST, seconds, relaid.conversions)
        return LaidOutGraph(relaid.module, other, plans[1], record, plans[0])
    return LaidOutGraph(graph_module, graph, plans[0], LayoutRecord(AS_TRACED, seconds), plans[1])


def in_layout(
    graph_module: torch.fx.GraphModule,
    phase: Phase,
    graph_id: str,
    roles: Mapping[str, PlaceholderRole],
    layout: str,
    hints: Hints | None = None,
) -> LaidOutGraph:
    """Describe a graph in a layout that was chosen before; as traced where it has no other. See ``choose_layout``."""
    relaid = channels_last_copy(graph_module) if phase == "inference" and layout == CHANNELS_LAST else None
    if relaid is not None:
        return as_relaid(relaid, phase, graph_id, roles, hints)
    return LaidOutGraph(graph_module, with_hints(describe(graph_module, phase, graph_id, roles), hints or {}))


def as_relaid(
    relaid: Relaid, phase: Phase, graph_id: str, roles: Mapping[str, PlaceholderRole], hints: Hints | None = None
) -> LaidOutGraph:
    """Describe a graph with channels-last images."""
    graph = with_hints(describe(relaid.module, phase, graph_id, roles), hints or {})
    return LaidOutGraph(relaid.module, graph, None, LayoutRecord(CHANNELS_LAST, (), relaid.conversions))


def named_layout(record: LayoutRecord) -> str:
    """The layout of a graph's images as choices name it: not at all where there is no other."""
    return record.chosen if record.estimated_s else ""
