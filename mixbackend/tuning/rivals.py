"""Who may be quicker than a plan: its rivals by estimates.

Place: below ``comparison_processor`` and ``comparison_gpu``. Input: a graph as it was placed. Output: seconds of single
backends, choices of mixtures.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

from mixbackend.contracts import PlacementError, Plan
from mixbackend.runtime.choice import Choice
from mixbackend.runtime.placed import PlacedGraph
from mixbackend.runtime.session import Session

LEAST_SHARE = 0.1
"""Of the plan's estimate, for a mixture without its owner to be another plan."""


def alone(*plans: Plan | None) -> dict[str, float]:
    """What each backend would take alone, in the layout that suits it."""
    pairs = [pair for plan in plans if plan is not None for pair in plan.single_backend_s]
    return {name: min(seconds for other, seconds in pairs if other == name) for name, _ in pairs}


def everyone(home: PlacedGraph, session: Session, tried: frozenset[str]) -> tuple[Choice, ...]:
    """The mixture of all backends that save anything, if the plan does without some of them: those that save less than
    estimates are good for; ``tried`` as ``mixtures`` takes it."""
    return _other_plans(home, session, [Choice(every=True)], math.inf, tried)


def mixtures(
    home: PlacedGraph, session: Session, limit: float, tried: frozenset[str], every: bool = False
) -> tuple[Choice, ...]:
    """Mixtures without a backend that owns a good part of the plan, where others can take its ops; largest share first.

    Args:
        limit: no mixture is estimated to take more seconds.
        tried: backends that are tried alone: a mixture of nobody else is no other plan.
        every: begin with the mixture of ``everyone``.
    """
    choices = (*((Choice(every=True),) if every else ()), *_without_owners(home.plan, _able(session)))
    return _other_plans(home, session, choices, limit, tried)


def _other_plans(
    home: PlacedGraph, session: Session, choices: Sequence[Choice], limit: float, tried: frozenset[str]
) -> tuple[Choice, ...]:
    """Those of the choices that come to plans of their own; arguments as ``mixtures`` takes them."""
    able = _able(session)
    # The plan itself comes first, so that no rival equals it.
    found: dict[frozenset[tuple[str, tuple[str, ...]]], Choice] = {_content(home.plan): Choice()}
    for choice in choices:
        with contextlib.suppress(PlacementError):
            other = session.place(home.graph, choice=choice)
            taking = {region.backend for region in other.regions}.intersection(able)
            new = len(taking) > 1 or bool(taking - tried)
            if new and other.estimated_s <= limit:
                found.setdefault(_content(other), choice)
    return tuple(found.values())[1:]


def _able(session: Session) -> list[str]:
    return [backend.name for backend in session.backends if not backend.traits().reference]


def _without_owners(plan: Plan, able: Sequence[str]) -> Iterator[Choice]:
    """All that are able but one who owns a good part of the plan, for each such."""
    shares: dict[str, float] = {}
    for region in plan.regions:
        shares[region.backend] = shares.get(region.backend, 0.0) + region.estimated_s
    for owner, seconds in sorted(shares.items(), key=lambda share: -share[1]):
        others = tuple(name for name in able if name != owner)
        if owner in able and others and seconds >= LEAST_SHARE * plan.estimated_s:
            yield Choice(others)


def _content(plan: Plan) -> frozenset[tuple[str, tuple[str, ...]]]:
    return frozenset((region.backend, region.nodes) for region in plan.regions)
