"""Joint decision: what was decided about a joint graph before it is split into forward and backward.

Place: made by ``plan.rematerialization``, kept by the lock file, taken by ``plan.rematerialization`` again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JointDecision:
    """What was decided about a joint graph.

    Attributes:
        layout: of its images.
        saved: ops that must be saved, each ``<operator>@<place>``, places counted over all nodes in that layout.
        recomputed: softmaxes that the backward computes again, and the ops that it computes again for them.
    """

    layout: str
    saved: tuple[str, ...]
    recomputed: tuple[str, ...] = ()
