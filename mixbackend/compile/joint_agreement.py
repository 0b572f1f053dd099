"""Joint agreement: ranks of one job save the same of a joint graph for the backward.

Place: asked by ``compile.mixture`` before a joint graph is split. Input: the graph. Output: the graph, marked.
What is saved and what is computed again decides which forward and backward graphs come of it; ranks that decided
otherwise would run other programs, whatever ``compile.agreement`` does about the plans of these.
Invariants: as of ``compile.agreement``.
"""

from __future__ import annotations

import torch.fx

from mixbackend.compile.council import Council, key_of
from mixbackend.contracts import PlacementError, RegionTextError
from mixbackend.graph.copies import copy_module
from mixbackend.graph.identity import Captured
from mixbackend.plan.environment import Environment
from mixbackend.plan.joint_decision import JointDecision
from mixbackend.plan.rematerialization import mark_as_decided, mark_saved
from mixbackend.storage.job import Standing, job_here

GRAPH_ID = "joint"
"""Joint graphs have no names of their own in reports."""


def mark_as_agreed(joint: torch.fx.GraphModule, environment: Environment) -> JointDecision:
    """Mark what a joint graph saves, by estimates, or as another rank did before."""
    council = _council(joint, environment)
    if council is None:
        return mark_saved(joint, environment.planner)
    with council.turn(len(joint.graph.nodes)) as turn:
        if turn is not None and turn.found is not None:
            taken = _taken(joint, turn.found, council)
            if taken is not None:
                council.follows(turn.found, turn.waited_s)
                return taken
        # The graph itself is left as it is: another rank may have been quicker.
        decision = mark_saved(copy_module(joint), environment.planner)
        first = council.first(decision.to_dict())
        taken = None if first is None else _taken(joint, first, council)
        if taken is None or first is None:
            mark_as_decided(joint, decision)
            return decision
        council.follows(first)
        return taken


def _council(joint: torch.fx.GraphModule, environment: Environment) -> Council | None:
    job = job_here()
    if job is None:
        return None
    try:
        identity = Captured(joint, "forward", {}, GRAPH_ID).identity
    except RegionTextError:
        return None  # its forward says so
    return Council(job, key_of("joint", identity, environment), GRAPH_ID, environment)


def _taken(joint: torch.fx.GraphModule, standing: Standing, council: Council) -> JointDecision | None:
    """Mark the graph as another rank did; ``None`` if that does not hold here: then it is as it was."""
    try:
        decision = JointDecision.from_dict(standing.value)
        mark_as_decided(copy_module(joint), decision)
    except (ValueError, PlacementError) as error:
        council.doubts(standing, error)
        return None
    mark_as_decided(joint, decision)
    return decision
