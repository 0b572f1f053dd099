"""Challengers of a graph on a processor: single backends, and mixtures that estimates put behind the plan.

Place: below ``compile.first_calls``. Input: a graph as it was placed by estimates. Output: whether it is worth trying
others, and ``Challenger`` values, in any order; nothing is planned for them yet.
Method: the plan's own search says what each backend would take alone. In inference, estimates of the backends that the
plan uses are right to about a tenth where a machine was calibrated, which is as much as a mixture gathers from its
parts; a library with a pool of threads of its own runs graphs its own way, and all its estimates err together. Rates
of a shipped table are right to the error that they state. In training, libraries pack live weights in every call and
read transposed ones, and estimates were seen to be off by two: mixtures without those that own most of the plan are
tried as well.
Units: seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from mixbackend.contracts import OpGraph, Plan, TensorMeta
from mixbackend.execute.state_restore import Changes, may_repeat, why_not_repeated
from mixbackend.host.processes import memory_bytes
from mixbackend.plan.choice import Choice
from mixbackend.plan.planner import Planner
from mixbackend.select.live.challengers import Challenger, build_s, nearest, single
from mixbackend.select.rivals import EVERY_BACKEND, alone, without_owners
from mixbackend.select.runnable import Runnable

LEAST_S = 2e-4
"""Graphs that are estimated to take less are not worth trying others."""
MOST_MEMORY = 3 / 4
"""Of the machine, for the inputs of a graph: a challenger packs its weights once more."""
NEAR, NEAR_QUICK, NEAR_ELSEWHERE, NEAR_TRAINING = 1.15, 1.4, 1.7, 2.5
"""Factors that estimates are right to: on pools of threads that the plan uses; there, if trying costs little since the
backend compiles within ``QUICK_S`` or owns part of the plan; on other pools; in training."""
QUICK_S = 1.0
MOST_ALONE, MOST_MIXTURES = 3, 3
"""In training, where each further program of a step takes seconds to build."""


def worth_trying_others(baseline: Runnable, placeholders: Sequence[str]) -> bool:
    """Whether a graph takes long enough, on the processor alone, and what it changes can be put back.

    Args:
        baseline: the graph as it is placed.
        placeholders: names of its inputs, in order.
    """
    graph = baseline.graph
    if baseline.plan.estimated_s < LEAST_S or not may_repeat(graph, placeholders):
        return False
    metas = (meta for node in graph.nodes for meta in node.outputs)
    return not any(isinstance(meta, TensorMeta) and meta.device.type != "cpu" for meta in metas)


def why_not_now(baseline: Runnable, placeholders: Sequence[str], values: Sequence[Any]) -> str:
    """Why nothing is tried with inputs like these; empty if it may be.

    The machine must have room for what a challenger makes of the weights, beside the plan's and the weights themselves.
    """
    held = sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
    if 3 * held > MOST_MEMORY * (memory_bytes() or math.inf):
        return f"inputs and weights of {held / 2**20:.0f} MiB, packed 2 times, fill too much of the machine"
    changes = Changes.of_graphs([baseline.graph], placeholders)
    return why_not_repeated(changes, values, baseline.plan.estimated_s)


def processor_challengers(baseline: Runnable, planner: Planner) -> tuple[Challenger, ...]:
    """Programs that may be quicker than a graph as it is placed."""
    plan, graph = baseline.plan, baseline.graph
    training = graph.phase != "inference"
    reference = next(item.name for item in planner.backends if item.traits().reference)
    known, owners = planner.comparable(graph), {region.backend for region in plan.regions}
    singles = [
        single(planner, graph, name, seconds, max(_near(name, plan, graph, planner), 1.0 + known[name]))
        for name, seconds in alone(baseline.layout.other, plan).items()
        if name in known and {name} != owners and (name != reference or seconds <= NEAR_QUICK * plan.estimated_s)
    ]
    if not singles:
        return ()
    mixtures: tuple[Choice, ...] = (EVERY_BACKEND,)
    if training:
        singles = list(nearest(singles, MOST_ALONE))
        mixtures = (EVERY_BACKEND, *without_owners(baseline, planner))[:MOST_MIXTURES]
    able = tuple(item.name for item in planner.backends if not item.traits().reference)
    error, seconds = NEAR_TRAINING if training else NEAR, build_s(planner, graph, able)
    return (*singles, *(Challenger(choice, plan.estimated_s, error, seconds) for choice in mixtures))


def _near(name: str, plan: Plan, graph: OpGraph, planner: Planner) -> float:
    if graph.phase != "inference":
        return NEAR_TRAINING
    pools = {item.name: item.traits().thread_pool for item in planner.backends}
    owners = {region.backend for region in plan.regions}
    if pools[name] not in {pools[owner] for owner in owners}:
        return NEAR_ELSEWHERE
    return NEAR_QUICK if name in owners or build_s(planner, graph, (name,)) <= QUICK_S else NEAR
