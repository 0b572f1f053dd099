"""Verdicts: what became of one piece on one backend, and whether two pieces fail alike.

Place: given by ``examine`` in another process, as plain data; read by the code that reduces.
Invariants: a piece that eager or the backend refuses is no failure; neither is one that could not be judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from mixbackend.host.asked_process import DEAD

Kind = Literal["right", "wrong", "raises", "crashes", "hangs", "slow", "unknown"]

FAULTS: tuple[Kind, ...] = ("crashes", "hangs", "raises", "wrong")
"""Kinds that are faults whatever the time; ``slow`` is one beside another time."""
LEAST_LOSS_S = 100e-6
"""What a region may lose before it counts as slow: less is the noise of estimates."""


@dataclass(frozen=True)
class Verdict:
    """See the module's docstring.

    Attributes:
        kind: what became of it; ``unknown`` where nothing can be told.
        at: what the backend was at: ``compile`` or ``run``.
        text: what was seen.
        sort: of errors and signals their name: other ones are other faults.
        seconds: of a call, where it was timed.
        eager_s: of eager, likewise.
    """

    kind: Kind
    at: str = ""
    text: str = ""
    sort: str = ""
    seconds: float | None = None
    eager_s: float | None = None

    @property
    def faulty(self) -> bool:
        """Whether the backend failed."""
        return self.kind in FAULTS

    def like(self, other: Verdict) -> bool:
        """Whether it is the same failure as another one."""
        return self.kind == other.kind and self.sort == other.sort and (self.kind == "wrong" or self.at == other.at)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def verdict_of(answer: Mapping[str, Any]) -> Verdict:
    """The verdict that an answer gives, or the death of the process that was to give it."""
    status = answer["status"]
    if status not in DEAD:
        return Verdict(**answer["verdict"])
    at, detail = answer.get("at", ""), str(answer.get("detail", "")).strip(": \n")
    if at not in ("compile", "run"):
        # Eager or the comparison has taken too long, or died: it is not the backend's.
        return Verdict("unknown", at, f"{status}: {detail}")
    if status == "timeout":
        return Verdict("hangs", at, detail)
    return Verdict("crashes", at, detail, detail.split(":")[0] if status == "crash" else status)


@dataclass(frozen=True)
class Slowness:
    """What a slow region is held against.

    Attributes:
        factor: so many times what it should take is slow.
        expected_s: what it should take.
        against: what these seconds are of: ``eager`` or ``estimate``.
        loss_s: what it loses.
    """

    factor: float
    expected_s: float
    against: Literal["eager", "estimate"]
    loss_s: float

    def lost(self, verdict: Verdict, expected_s: float) -> float | None:
        """What a piece loses that should take so long; ``None`` where it is not slow."""
        if verdict.seconds is None or verdict.seconds <= self.factor * expected_s:
            return None
        loss = verdict.seconds - expected_s
        return loss if loss >= LEAST_LOSS_S else None
