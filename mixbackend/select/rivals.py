"""Rivals: plans that may be quicker than the baseline, by estimates.

Place: below ``comparison_processor`` and ``comparison_gpu``. Input: a graph as it was placed. Output: seconds of single
backends, choices of mixtures.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

from mixbackend.contracts import PlacementError, Plan
from mixbackend.plan.choice import Choice
from mixbackend.plan.planner import Planner
from mixbackend.select.runnable import Runnable

EVERY_BACKEND = Choice(every=True)
"""The mixture of all backends that save anything, those included that save less than estimates are good for."""
LEAST_SHARE = 0.1
"""Of the plan's estimate, for a mixture without its owner to be another plan."""


def alone(*plans: Plan | None) -> dict[str, float]:
    """What each backend would take alone, in the layout that suits it."""
    pairs = [pair for plan in plans if plan is not None for pair in plan.single_backend_s]
    return {name: min(seconds for other, seconds in pairs if other == name) for name, _ in pairs}


def without_owners(baseline: Runnable, planner: Planner) -> tuple[Choice, ...]:
    """Mixtures without one of the backends that own a good part of the plan; the one without the largest first."""
    plan, able = baseline.plan, _able(planner)
    shares: dict[str, float] = {}
    for region in plan.regions:
        shares[region.backend] = shares.get(region.backend, 0.0) + region.estimated_s
    owners = sorted(shares, key=lambda name: -shares[name])
    large = [name for name in owners if name in able and shares[name] >= LEAST_SHARE * plan.estimated_s]
    choices = (tuple(name for name in able if name != owner) for owner in large)
    return tuple(Choice(others) for others in choices if others)


def other_plans(
    baseline: Runnable, planner: Planner, mixtures: Sequence[Choice], tried: frozenset[str], limit: float = math.inf
) -> tuple[Choice, ...]:
    """Those of the mixtures that come to plans of their own, in their order.

    Args:
        baseline: the graph as it is placed.
        planner: places it.
        mixtures: choices among backends.
        tried: backends that are tried alone: a mixture of these alone is no other plan.
        limit: no mixture is estimated to take more seconds.
    """
    able = _able(planner)
    # The plan itself comes first, so that no rival equals it.
    found: dict[frozenset[tuple[str, tuple[str, ...]]], Choice] = {_content(baseline.plan): Choice()}
    for choice in mixtures:
        with contextlib.suppress(PlacementError):
            other = planner.place(baseline.graph, choice=choice)
            taking = {region.backend for region in other.regions}.intersection(able)
            new = len(taking) > 1 or bool(taking - tried)
            if new and other.estimated_s <= limit:
                found.setdefault(_content(other), choice)
    return tuple(found.values())[1:]


def _able(planner: Planner) -> list[str]:
    return [backend.name for backend in planner.backends if not backend.traits().reference]


def _content(plan: Plan) -> frozenset[tuple[str, tuple[str, ...]]]:
    return frozenset((region.backend, region.nodes) for region in plan.regions)
