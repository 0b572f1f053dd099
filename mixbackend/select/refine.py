"""Refining: further plans, once the regions of the first ones were measured.

Place: between the heats of a race and its final. Input: what the candidates' regions took. Output: one more candidate
at a time, until the plan is stable.
Method: what a region took beyond its estimate is shared out among its ops, in proportion to their estimates, and added
to their costs on that backend; where an op was measured in several regions, the smallest of them counts. With these
costs the same exact search runs again. A plan that comes near the fastest that was measured is measured next,
and its regions correct the costs further. What was never measured keeps its estimate, so an optimistic estimate is
tried once and then known.
Invariants: no plan is tried twice; at most ``MOST_PLANS`` are made. A corrected cost is never below zero.
Units: seconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from mixbackend.contracts import OpGraph, Plan
from mixbackend.partitioner.atoms import is_free
from mixbackend.partitioner.plan_canonical import canonical_plan, local_names
from mixbackend.plan.choice import Choice
from mixbackend.plan.planner import Planner
from mixbackend.select.candidates import Content, content_of
from mixbackend.select.race import Candidate, Showing
from mixbackend.select.timings import RegionTiming

MOST_PLANS = 4
WORTH_TRYING = 1.03
"""A further plan may promise to be this much slower than the quickest candidate: what regions took one by one does not
add up to more than that, and if noise decided which are tried, tuning again would find another plan."""

Corrections = dict[tuple[str, str], float]


class Refiner:
    """See the module's docstring; called by ``race``.

    Args:
        graphs: the graph in each layout that there is.
        planner: places it.
        tried: plans that are candidates already.
    """

    def __init__(self, graphs: Mapping[str, OpGraph], planner: Planner, tried: Iterable[Content]) -> None:
        self._graphs = graphs
        self._planner = planner
        self._tried = set(tried)
        self._made = 0

    def __call__(self, showings: Sequence[Showing]) -> Candidate | None:
        """One more candidate, ``None`` if none promises anything."""
        if self._made >= MOST_PLANS or not showings:
            return None
        timings = [RegionTiming.from_dict(data) for showing in showings for data in showing.regions]
        plans = {layout: self._plan(layout, timings) for layout in self._graphs}
        layout = min(plans, key=lambda name: plans[name].estimated_s)
        plan = plans[layout]
        quickest = min(showing.seconds for showing in showings)
        content = content_of(layout, plan)
        if content in self._tried or plan.estimated_s > WORTH_TRYING * quickest:
            return None
        self._made += 1
        self._tried.add(content)
        named = layout if len(self._graphs) > 1 else ""
        return Candidate(Choice(layout=named, plan=canonical_plan(plan, self._graphs[layout])), plan.estimated_s)

    def _plan(self, layout: str, timings: Sequence[RegionTiming]) -> Plan:
        graph = self._graphs[layout]
        mine = [timing for timing in timings if timing.layout == layout]
        corrections = corrections_of(graph, mine, lambda backend, name: self._planner.op_seconds(graph, backend, name))
        return self._planner.place(graph, corrections=corrections)


def corrections_of(
    graph: OpGraph, timings: Sequence[RegionTiming], op_seconds: Callable[[str, str], float]
) -> Corrections:
    """What measurements add to the cost of each op on each backend.

    Args:
        graph: that was measured.
        timings: of regions of its plans.
        op_seconds: the estimate for (backend, node name).
    """
    names = {known: name for known, name in local_names(graph).items() if not is_free(graph.node_by_name[name])}
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for timing in timings:
        ops = [names[name] for name in timing.nodes if name in names]
        estimates = [op_seconds(timing.backend, name) for name in ops]
        beyond, whole = timing.measured_s - timing.estimated_s, sum(estimates)
        for name, seconds in zip(ops, estimates, strict=True):
            share = seconds / whole if whole > 0.0 else 1.0 / len(ops)
            found.setdefault((name, timing.backend), []).append((len(ops), beyond * share))
    return {key: _of_smallest(rows) for key, rows in found.items()}


def _of_smallest(rows: Sequence[tuple[int, float]]) -> float:
    least = min(size for size, _ in rows)
    return statistics.median(seconds for size, seconds in rows if size == least)
