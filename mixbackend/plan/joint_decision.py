"""Joint decision: what was decided about a joint graph before it is split into forward and backward.

Place: made by ``plan.rematerialization``, kept by the database and the lock file, taken by ``plan.rematerialization``
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from mixbackend.reporting.records import AS_TRACED, CHANNELS_LAST


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

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"layout": self.layout, "saved": list(self.saved), "recomputed": list(self.recomputed)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> JointDecision:
        """A decision from plain data.

        Raises:
            ValueError: the data is not that of a decision.
        """
        layout, saved, recomputed = data.get("layout"), data.get("saved"), data.get("recomputed")
        if layout not in (AS_TRACED, CHANNELS_LAST) or not _are_names(saved) or not _are_names(recomputed):
            raise ValueError(f"{dict(data)} is no decision about a joint graph")
        return cls(layout, tuple(saved), tuple(recomputed))


def _are_names(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)
