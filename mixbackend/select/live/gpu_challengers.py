"""Challengers of a graph on a GPU: the nearest backends alone, then mixtures without those that own most of the plan.

Place: below ``compile.first_calls``, beside ``processor_challengers``. Input: a graph as it was placed by estimates.
Output: whether it is worth trying others, and ``Challenger`` values, in any order; nothing is planned for them yet.
Method: estimates err more here than on a processor: a kernel's rate depends on its shape by factors, and what libraries
choose among their kernels is not known before. Sums over whole models were seen to be off by up to three, and more so
for mixtures of small kernels than for one compiler.
Units: seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mixbackend.contracts import OpGraph
from mixbackend.execute.cuda_graphs import device_of
from mixbackend.execute.state_restore import Changes, may_repeat, why_not_repeated
from mixbackend.plan.planner import Planner
from mixbackend.select.gpu_memory import why_too_large
from mixbackend.select.live.challengers import Challenger, build_s, nearest, single, worth_trying
from mixbackend.select.rivals import EVERY_BACKEND, alone, without_owners
from mixbackend.select.runnable import Runnable

LEAST_S = 5e-5
"""Graphs that are estimated to take less are not worth trying others."""
NEAR = 2.5
"""Factor that estimates are right to."""
MOST_ALONE, MOST_MIXTURES = 3, 3


def worth_trying_others(baseline: Runnable, placeholders: Sequence[str]) -> bool:
    """Whether a graph takes long enough, on one GPU alone, and what it changes can be put back.

    Args:
        baseline: the graph as it is placed.
        placeholders: names of its inputs, in order.
    """
    graph = baseline.graph
    return baseline.plan.estimated_s >= LEAST_S and device_of(graph) is not None and may_repeat(graph, placeholders)


def why_not_now(baseline: Runnable, placeholders: Sequence[str], values: Sequence[Any]) -> str:
    """Why nothing is tried with inputs like these; empty if it may be."""
    graph, device = baseline.graph, device_of(baseline.graph)
    assert device is not None, "see worth_trying_others"
    changes = Changes.of_graphs([graph], placeholders)
    lacking = why_too_large(graph, changes, values, device, 1)
    return lacking or why_not_repeated(changes, values, baseline.plan.estimated_s)


def gpu_challengers(baseline: Runnable, planner: Planner) -> tuple[Challenger, ...]:
    """Programs that may be quicker than a graph as it is placed."""
    graph, plan = baseline.graph, baseline.plan
    owners, usable = {region.backend for region in plan.regions}, _usable(graph, planner)
    # A single backend's own plan is the one that is there.
    singles = [
        single(planner, graph, name, seconds, NEAR)
        for name, seconds in alone(baseline.layout.other, plan).items()
        if name in usable and {name} != owners
    ]
    near = nearest(worth_trying(singles, plan.estimated_s), MOST_ALONE)
    mixtures = (EVERY_BACKEND, *without_owners(baseline, planner))[:MOST_MIXTURES]
    seconds = build_s(planner, graph, tuple(usable))
    return (*near, *(Challenger(choice, plan.estimated_s, NEAR, seconds) for choice in mixtures))


def _usable(graph: OpGraph, planner: Planner) -> set[str]:
    """Backends that take tensors of this device and are no reference: running them tells."""
    traits = {backend.name: backend.traits() for backend in planner.backends}
    return {name for name, item in traits.items() if graph.device_type in item.device_types and not item.reference}
