"""What work behind may take: processor seconds, for all and for each entry, as they are earned.

Place: kept by ``background``, which knows what calls took, and by ``behind_governor``, which knows what workers used.
Input: times and figures as values; no clock is read here. Output: whether work may go on.

- Nothing is done for an entry before its calls came 20 times and took two seconds in sum.
- What is done for an entry takes at most a quarter of what its calls took.
- All work together takes at most a share of the cores, earned second by second; half a processor second is kept for
  later at most, so that the share holds for any ten seconds, too.
- Beside that, half of what the user's process leaves idle of its cores may be used. It is taken first, and entries do
  not pay for it.
- A process has so many processor seconds in all.
- In a warm-up workers have half of the cores, and what they use counts for none of this: the warm-up has an end of its
  own (``Limits.in_warm_up``).

Invariants: what was used counts even where it was not allowed (a worker is looked at every few hundredths of a
second), and is earned back before anything goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

LEAST_CALLS = 20
LEAST_CALLS_S = 2.0
SHARE_OF_CALLS = 0.25
_KEPT_S = 0.5
_LEAST_WORKER_BYTES = 512 * 1024 * 1024
_SHARE_OF_MEMORY = 0.25
_MOST_WORKERS = 8
_SHARE_UNATTENDED = 0.5
"""Of cores that no call waits for: those that the process leaves idle, and all of them in a warm-up."""
_COMPILER_BYTES = 1024 * 1024 * 1024
"""For one compiler beside others: pages that it shares with them count for each."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What the calls of an entry came to so far.

    Attributes:
        calls: how many.
        seconds: their sum.
    """

    calls: int
    seconds: float

    @property
    def paid(self) -> bool:
        """Whether anything may be done for the entry."""
        return self.calls >= LEAST_CALLS and self.seconds >= LEAST_CALLS_S

    @property
    def allowance_s(self) -> float:
        """Processor seconds that may be used for the entry in all."""
        return self.seconds * SHARE_OF_CALLS if self.paid else 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one process may have behind.

    Attributes:
        budget_s: processor seconds in all; infinite in a warm-up.
        share: of the cores.
        cores: how many the process may use.
        memory_bytes: of all workers together; 0 for a quarter of what is free when they start.
    """

    budget_s: float
    share: float
    cores: int
    memory_bytes: int = 0

    @property
    def in_warm_up(self) -> Limits:
        """What it may have while the user does not wait for its calls."""
        return replace(self, share=max(self.share, _SHARE_UNATTENDED), budget_s=math.inf)

    @property
    def free(self) -> bool:
        """Whether nothing has to be paid for."""
        return math.isinf(self.budget_s)

    @property
    def workers(self) -> int:
        """How many may work at once, one thread each."""
        return max(1, min(_MOST_WORKERS, int(self.share * self.cores)))

    def worker_bytes(self, free_bytes: int) -> int:
        """Memory of each worker where so much is free, of which 0 means unknown; 0 if no worker can live with it."""
        quarter = int(free_bytes * _SHARE_OF_MEMORY) or self.memory_bytes or _LEAST_WORKER_BYTES * self.workers
        together = min(quarter, self.memory_bytes or quarter)
        each = together // self.workers
        return each if each >= _LEAST_WORKER_BYTES else 0

    def compilers(self, worker_bytes: int, jobs: int = 1) -> int:
        """How many kernels a worker with so much memory may compile at once, where there are so many jobs.

        One job alone may have what all workers may in a warm-up, which is what an idle process leaves it; what it uses
        is counted in any case.
        """
        return max(1, min(self.in_warm_up.workers // jobs, worker_bytes // _COMPILER_BYTES))


class Account:
    """Processor seconds that are earned and used.

    Args:
        limits: what is allowed; others may take their place.
        now: a moment of some clock.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        self.limits = limits
        self._at = now
        self._kept = self._idle = 0.0
        self.used_s = self._of_budget_s = 0.0
        self._used_for: dict[str, float] = {}
        self._allowed_for: dict[str, float] = {}

    def pass_until(self, now: float, busy_s: float | None = None) -> None:
        """Earn what the time since the last call of this brings.

        Args:
            now: a moment of the clock.
            busy_s: processor seconds that the user's process has used since then; ``None`` where that is unknown.
        """
        passed = self.limits.cores * max(0.0, now - self._at)
        idle = 0.0 if busy_s is None else max(0.0, passed - busy_s)
        self._kept = min(_KEPT_S, self._kept + self.limits.share * passed)
        self._idle = min(_KEPT_S, self._idle + _SHARE_UNATTENDED * idle)
        self._at = now

    def use(self, entry: str, seconds: float) -> None:
        """Count what a worker used for an entry."""
        self.used_s += seconds
        idle = min(seconds, max(0.0, self._idle)) if self._paid(entry) else seconds
        self._idle -= idle
        self._kept -= seconds - idle
        if not self.limits.free:
            self._of_budget_s += seconds
            self._used_for[entry] = self._used_for.get(entry, 0.0) + seconds - idle

    def allow(self, entry: str, seconds: float) -> None:
        """Let so many seconds in all be used for an entry; what was allowed is not taken back."""
        self._allowed_for[entry] = max(seconds, self._allowed_for.get(entry, 0.0))

    @property
    def spent(self) -> bool:
        """Whether nothing more will be earned."""
        return self._of_budget_s >= self.limits.budget_s

    def may_go_on(self, entry: str) -> bool:
        """Whether something may be used for an entry now."""
        return not self.spent and (self._idle > 0 or (self._kept > 0 and self._paid(entry)))

    def paid(self, entry: str) -> bool:
        """Whether work for an entry waits for time to pass alone: its calls, or idle cores, have brought enough."""
        return self._idle > 0 or self._paid(entry)

    def _paid(self, entry: str) -> bool:
        return self.limits.free or self._used_for.get(entry, 0.0) < self._allowed_for.get(entry, 0.0)


@dataclass(frozen=True, slots=True)
class WorkBehind:
    """What is behind at present, for reports.

    Attributes:
        unpaid: jobs that wait for calls to pay for them.
        begun: jobs that were begun, or could be.
        used_s: processor seconds that jobs have used.
        budget_s: that they may use in all, without those of warm-ups.
        state: why nothing is done at present; ``""`` if something is, or there is nothing to do.
    """

    unpaid: int = 0
    begun: int = 0
    used_s: float = 0.0
    budget_s: float = 0.0
    state: str = ""

    @classmethod
    def together(cls, parts: Iterable[WorkBehind | None]) -> WorkBehind | None:
        """Of several, as one; ``None`` if there are none."""
        known = [part for part in parts if part is not None]
        if not known:
            return None
        total = {name: sum(getattr(part, name) for part in known) for name in ("unpaid", "begun", "used_s", "budget_s")}
        return cls(**total, state=next((part.state for part in known if part.state), ""))

    def __str__(self) -> str:
        waits = f"; {self.begun} jobs under way" if self.begun else ""
        waits += f"; {self.unpaid} wait for further calls" if self.unpaid else ""
        why = f" ({self.state})" if self.state else ""
        return f"work behind used {self.used_s:.3g} of {self.budget_s:.3g} processor seconds{waits}{why}"
