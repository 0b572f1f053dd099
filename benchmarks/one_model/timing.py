"""Fair timings: peers in processes of their own, taking turns.

Place: used by the suite's speed mode and by the demo.
Why processes: two thread pools in one process slow one another down by up to ten times. Why turns: a machine's speed
drifts; what is compared must have run under the same drift.
Input: named requests. Output: ``Timing`` per peer, with ratios taken round by round.
Units: seconds. Invariants: every figure comes with its spread; a peer that fails keeps its reason.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mixbackend.benchmarks.one_model.protocol import MODULE, Request
from mixbackend.host.processes import Worker

ROUND_SECONDS = 0.15
PAUSE_SECONDS = 0.02
"""Between two peers: threads that wait for work after a call stop spinning in this time."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Timing:
    """How fast one peer is.

    Attributes:
        name: of the peer.
        status, detail: ``pass``, or why there are no figures.
        first_call_s: first call, compilation included.
        rounds_s: seconds per call, one figure (the median of its calls) per round.
        placement: see ``placements.summarise``; empty for peers that are not a mixture.
    """

    name: str
    status: str
    detail: str = ""
    first_call_s: float = math.nan
    rounds_s: tuple[float, ...] = ()
    placement: Mapping[str, Any] = field(default_factory=dict)

    @property
    def median_s(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.rounds_s) if self.rounds_s else math.nan

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, relative to the median."""
        if len(self.rounds_s) < 2:
            return math.nan
        low, _, high = statistics.quantiles(self.rounds_s, n=4, method="inclusive")
        return (high - low) / 2 / self.median_s

    def to_dict(self) -> dict[str, Any]:
        """Plain data; figures that do not exist are ``None``."""
        known = bool(self.rounds_s)
        return {
            "status": self.status,
            "detail": self.detail,
            "first_call_s": self.first_call_s if known else None,
            "median_s": self.median_s if known else None,
            "spread": self.spread if len(self.rounds_s) > 1 else None,
            "rounds_s": list(self.rounds_s),
            "placement": dict(self.placement),
        }


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster one peer is than another: median and quartiles of the rounds' ratios."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.low:.2f} to {self.high:.2f})"


def speedup(slow: Timing, fast: Timing) -> Ratio | None:
    """How many times faster ``fast`` is than ``slow``; ``None`` if one has no figures."""
    pairs = list(zip(slow.rounds_s, fast.rounds_s, strict=False))
    if not pairs:
        return None
    ratios = [above / below for above, below in pairs]
    if len(ratios) == 1:
        return Ratio(ratios[0], ratios[0], ratios[0])
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(middle, low, high)


def interleave(
    requests: Mapping[str, Request],
    rounds: int,
    timeout_s: float,
    threads: int = 0,
    progress: Progress = lambda text: None,
) -> dict[str, Timing]:
    """Warm up every peer, then let them take turns for ``rounds`` rounds."""
    workers: dict[str, Worker] = {}
    ready: dict[str, Any] = {}
    try:
        for name, request in requests.items():
            progress(f"compiling {name}")
            workers[name] = Worker(request, MODULE, threads)
            ready[name] = workers[name].answer(timeout_s)
        alive = {name: worker for name, worker in workers.items() if ready[name]["status"] == "pass"}
        seconds, failures = _take_turns(alive, ready, rounds, timeout_s, progress)
    finally:
        for worker in workers.values():
            worker.close()
    return {name: _timing(name, failures.get(name, ready[name]), ready[name], seconds.get(name, [])) for name in ready}


def _take_turns(
    workers: Mapping[str, Worker], ready: Mapping[str, Any], rounds: int, timeout_s: float, progress: Progress
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    failures: dict[str, Any] = {}
    for turn in range(rounds):
        progress(f"round {turn + 1} of {rounds}")
        for name in round_order(list(workers), turn):
            if name in failures:
                continue
            time.sleep(PAUSE_SECONDS)
            answer = workers[name].time_calls(calls_per_round(ready[name]["warm_s"]), timeout_s)
            if answer["status"] == "pass":
                seconds[name].append(statistics.median(answer["seconds"]))
            else:
                failures[name] = answer
    return seconds, failures


def round_order(names: Sequence[str], turn: int) -> list[str]:
    """The order of a round: rotated, and every second one backwards.

    Another peer comes first each time, for the one after a pause has colder caches; and no peer always follows the same
    neighbour: behind a peer that works long and hard, a processor's clock was seen to be slower by 1%.
    """
    start = turn // 2 % len(names) if names else 0
    order = [*names[start:], *names[:start]]
    return order[::-1] if turn % 2 else order


def calls_per_round(warm_s: float) -> int:
    """Calls that fill a round, at least one and at most a hundred."""
    return max(1, min(100, round(ROUND_SECONDS / max(warm_s, 1e-6))))


def _timing(name: str, last: Mapping[str, Any], ready: Mapping[str, Any], rounds_s: Sequence[float]) -> Timing:
    failed = last["status"] != "pass"
    return Timing(
        name=name,
        status=last["status"],
        detail=last.get("detail", ""),
        first_call_s=ready.get("first_call_s", math.nan),
        rounds_s=() if failed else tuple(rounds_s),
        placement=ready.get("placement") or {},
    )
