"""What planning asks a lock file: a value's shape, since the file's own reader stands above.

Place: between the planner and ``locking.lock``, which is one.
Input: a captured or a joint graph's identity. Output: what was decided for it; what came of that is told by ``settle``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from mixbackend.contracts import Phase
from mixbackend.plan.choice import Choice
from mixbackend.plan.joint_decision import JointDecision
from mixbackend.reporting.records import IdentityRecord


class AskedGraph(Protocol):
    """A captured graph as a lock file is asked about it; what it is asked for is computed then."""

    @property
    def identity(self) -> IdentityRecord:
        """What makes it the same elsewhere.

        Raises:
            RegionTextError: it has no text.
        """

    @property
    def ops(self) -> Counter[str]:
        """How often each operator is in it."""


class LockedPlans(Protocol):
    """Plans that were locked."""

    def choice(self, graph_id: str, phase: Phase, graph: AskedGraph) -> Choice | None:
        """How a graph is to be placed; ``None`` if the file says nothing.

        Raises:
            LockError: under ``frozen``, where there is nothing that could be used.
        """

    def joint_decision(self, key: str) -> JointDecision | None:
        """What a joint graph is to save; ``None`` if the file says nothing."""

    def settle(self, graph_id: str, problems: Sequence[str]) -> None:
        """Say what came of a decision: what speaks against it.

        Raises:
            LockError: under ``frozen``, if there is anything.
        """

    def check(self, made_by: str) -> None:
        """Raise if anything differed so far, or if entries that this command made were not used.

        Raises:
            LockError: with all of it.
        """
