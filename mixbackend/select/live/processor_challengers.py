"""Challengers of a graph on a processor: single backends, and the mixture of all that save anything.

Place: below ``compile.tried_entry``. Input: a graph as it was placed by estimates. Output: ``Challenger`` values, in
any order; nothing is planned for them yet.
Method: the plan's own search says what each backend would take alone. Estimates of the backends that the plan uses are
right to about a tenth where a machine was calibrated, which is as much as a mixture gathers from its parts; a library
with a pool of threads of its own runs graphs its own way, and all its estimates err together.
Units: seconds.
"""

from __future__ import annotations

from mixbackend.contracts import Backend, OpGraph, Plan
from mixbackend.plan.choice import Choice
from mixbackend.plan.planner import Planner
from mixbackend.select.live.challengers import Challenger
from mixbackend.select.rivals import EVERYONE, alone
from mixbackend.select.runnable import Runnable

NEAR, NEAR_QUICK, NEAR_ELSEWHERE = 1.15, 1.4, 1.7
"""Factors that estimates are right to: on pools of threads that the plan uses; there, if trying costs little since the
backend compiles within ``QUICK_S`` or owns part of the plan; and on other pools."""
QUICK_S = 1.0


def processor_challengers(baseline: Runnable, planner: Planner) -> tuple[Challenger, ...]:
    """Programs that may be quicker than a graph as it is placed."""
    plan, graph = baseline.plan, baseline.graph
    reference = next(item.name for item in planner.backends if item.traits().reference)
    known, owners = planner.costs.comparable(graph), {region.backend for region in plan.regions}
    singles = [
        Challenger(Choice(single=name), seconds, _error(name, plan, graph, planner), build_s(planner, graph, (name,)))
        for name, seconds in alone(baseline.layout.other, plan).items()
        if name in known and {name} != owners and (name != reference or seconds <= NEAR_QUICK * plan.estimated_s)
    ]
    if not singles:
        return ()
    able = tuple(item.name for item in planner.backends if not item.traits().reference)
    everyone = Challenger(EVERYONE, plan.estimated_s, NEAR, build_s(planner, graph, able))
    return (*singles, everyone)


def build_s(planner: Planner, graph: OpGraph, names: tuple[str, ...]) -> float:
    """What these backends would take to compile the graph, one after the other."""
    return sum(_alone_s(planner.backend(name), graph) for name in names)


def _alone_s(backend: Backend, graph: OpGraph) -> float:
    return backend.build_seconds(graph.device_type).of(len(graph.placed_nodes))


def _error(name: str, plan: Plan, graph: OpGraph, planner: Planner) -> float:
    pools = {item.name: item.traits().thread_pool for item in planner.backends}
    owners = {region.backend for region in plan.regions}
    if pools[name] not in {pools[owner] for owner in owners}:
        return NEAR_ELSEWHERE
    return NEAR_QUICK if name in owners or build_s(planner, graph, (name,)) <= QUICK_S else NEAR
