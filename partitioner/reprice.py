"""What given plans cost under costs or sizes other than those that they were made for.

Place: beside ``place``; asked where one graph may have several plans, by range of sizes.
Input: an ``OpGraph``, plans of it, backends, costs and preferences as ``place`` takes them. Output: the true energy of
each plan, and a lower bound that no legal plan of this graph undercuts.
Invariants: ``reprice(graph, [place(graph, ...)], ...)`` gives the plan's own ``estimated_s``. A plan that is no
placement of this graph (an op without a verdict, another pattern) has no price: ``None``.
Units: seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mixbackend.contracts import Backend, CostModel, OpGraph, PlacementError, Plan, Preference
from mixbackend.partitioner.bound import discounted, on_one_pool
from mixbackend.partitioner.conditions import RegionRules
from mixbackend.partitioner.energy import Placement, true_energy
from mixbackend.partitioner.placement import make_problem
from mixbackend.partitioner.plan_to_placement import placement_of_plan
from mixbackend.partitioner.problem import Problem
from mixbackend.partitioner.search import find_labels
from mixbackend.partitioner.step_clock import StepClock, collection_paused


@dataclass(frozen=True, slots=True)
class Repriced:
    """What plans of one graph cost.

    Attributes:
        seconds: of each plan, ``None`` for one that is no placement of this graph.
        bound_s: no legal plan costs less; 0 if it was not asked for.
    """

    seconds: tuple[float | None, ...]
    bound_s: float = 0.0


def reprice(
    graph: OpGraph,
    plans: Sequence[Plan],
    backends: Sequence[Backend],
    costs: CostModel,
    *,
    preferences: Sequence[Preference] = (),
    minimum_ops: Mapping[str, int] | None = None,
    bounded: bool = False,
) -> Repriced:
    """Price plans of a graph; nothing is searched for unless a bound is wanted.

    Args:
        graph: at the sizes of interest.
        plans: their nodes are named as the graph's.
        backends, costs, preferences, minimum_ops: as ``place`` takes them.
        bounded: also find what no plan can undercut, which takes a search.
    """
    with collection_paused(len(graph.nodes)):
        problem = make_problem(graph, backends, costs, preferences, frozenset(), {}, StepClock())
        rules = RegionRules(problem, backends, minimum_ops or {})
        placements = [_placement(problem, plan) for plan in plans]
        seconds = tuple(None if item is None else true_energy(problem, item, rules.price) for item in placements)
        return Repriced(seconds, _bound(problem, rules) if bounded else 0.0)


def _bound(problem: Problem, rules: RegionRules) -> float:
    problems = (problem, *on_one_pool(problem))
    return min(find_labels(discounted(item, rules.pricing) if rules.pricing else item).bound for item in problems)


def _placement(problem: Problem, plan: Plan) -> Placement | None:
    try:
        return placement_of_plan(problem, plan)
    except PlacementError:
        return None
