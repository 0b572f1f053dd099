"""Rows of the distributed benchmark: which there are, and what the ranks of one told, as one record.

Place: between ``launch`` and the command. Input: cases, peers, how many ranks. Output: records of ``ResultFile``.
Method: a row is a case under one peer on all ranks, or on one, from which scaling is counted. The time of a step is the
median over blocks on the slowest rank. The most telling rows come first: all ranks, then one.
Invariants: a record holds figures of one job; what is missing has a reason.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixbackend.benchmarks.distributed.launch import Outcome

CASES = ("ddp-resnet50", "ddp-bert", "fsdp2-llama", "tensor-llama", "pipeline-llama")
PEERS = ("eager", "inductor", "mixture", "inductor:reduce-overhead", "mixture:reduce-overhead")
MORE_WORK = ("ddp", "fsdp2")
"""Cases of these ways have as many batches as ranks."""
_TIMES_EAGER = 1.25
_NOISE = 1e-5
"""An error below this is rounding in float32."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: a case under a peer, on so many ranks, for the so-manieth time."""

    case: str
    peer: str
    ranks: int
    round: int = 0

    def __str__(self) -> str:
        return f"{self.case} {self.peer} on {self.ranks}"


def rows(cases: Sequence[str], peers: Sequence[str], ranks: int, rounds: int, scaling: bool) -> tuple[Row, ...]:
    """In the order in which they run; every other round runs the peers the other way round."""
    turns = [(turn, tuple(peers) if turn % 2 == 0 else tuple(reversed(peers))) for turn in range(rounds)]
    spread = [Row(case, peer, ranks, turn) for turn, order in turns for case in cases for peer in order]
    alone = [Row(case, peer, 1) for case in cases for peer in peers] if scaling and ranks > 1 else []
    return (*spread, *alone)


def record(row: Row, outcome: Outcome, seconds: float) -> dict[str, Any]:
    """What the ranks of a row told, as one."""
    found = {"case": row.case, "peer": row.peer, "ranks": row.ranks, "round": row.round, "seconds": round(seconds, 1)}
    if outcome.failed or not outcome.told:
        return {**found, "failed": outcome.failed[-2500:] or "no rank told anything"}
    told = outcome.told
    worst = max(told, key=lambda part: part["worst_error"])
    losses = [part["loss"] for part in told if part["loss"] is not None]
    copies = [part["copies"] for part in told if part["copies"] is not None]
    memory = {
        key: max(part[key] for part in told) for key in ("memory_gb", "first_memory_gb") if all(key in p for p in told)
    }
    plans = [part["plans"] for part in told if "plans" in part]
    return {
        **found,
        **memory,
        "step_ms": max(statistics.median(part["times_ms"]) for part in told),
        "times_ms": [part["times_ms"] for part in told],
        "first_s": [part["first_s"] for part in told],
        "settled": all(part["settled"] for part in told),
        "overlap": told[0]["overlap"],
        "loss": statistics.fmean(losses),
        "reference_loss": told[0]["reference_loss"],
        "gradient_error": max(part["gradient_error"] for part in told),
        "worst_error": worst["worst_error"],
        "worst": worst["worst"],
        "equal_bits": len(set(copies)) == 1 if copies else None,
        "equal_plans": len(set(plans)) == 1 if len(plans) > 1 else None,
        "graphs": [part["graphs"] for part in told if "graphs" in part],
        "ops": [part["ops"] for part in told if "ops" in part],
        "events": [part["events"] for part in told if "events" in part],
    }


def summary(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One line for each case and peer on all ranks: its median over rounds, beside inductor in the same mode."""
    groups: dict[tuple[str, str, bool], list[Mapping[str, Any]]] = {}
    for item in records:
        groups.setdefault((item["case"], item["peer"], item["ranks"] > 1), []).append(item)
    times = {key: _step(items) for key, items in groups.items()}
    lines = []
    for (case, peer, spread), items in groups.items():
        if spread:
            done = [item for item in items if "failed" not in item]
            line = {"case": case, "peer": peer, "ranks": items[0]["ranks"], "step_ms": times[case, peer, True]}
            rival = times.get((case, peer.replace("mixture", "inductor"), True))
            if peer.startswith("mixture") and rival and line["step_ms"]:
                line["of_inductor"] = round(rival / line["step_ms"], 3)
            line["scaling"] = _scaling(case, times.get((case, peer, False)), line["step_ms"], items[0]["ranks"])
            line["right"] = _right(done, groups.get((case, "eager", True), ()))
            line["failed"] = next((item["failed"][:200] for item in items if "failed" in item), "")
            lines.append({**(done[-1] if done else {}), **line})
    return lines


def _step(items: Sequence[Mapping[str, Any]]) -> float | None:
    found = [item["step_ms"] for item in items if "step_ms" in item]
    return round(statistics.median(found), 3) if found else None


def _scaling(case: str, alone: float | None, spread: float | None, ranks: int) -> float | None:
    """The share of what so many ranks could do at best."""
    if not alone or not spread:
        return None
    return round(alone / spread / (1 if case.split("-")[0] in MORE_WORK else ranks), 3)


def _right(done: Sequence[Mapping[str, Any]], eager: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether gradients are as near to float32's as eager's on as many ranks, and equal where they are copies.

    ``None`` where that is not known: no row ended, or copies are equal and eager did not run.
    """
    errors = [item["gradient_error"] for item in eager if "gradient_error" in item]
    bound = max(_TIMES_EAGER * max(errors, default=0.0), _NOISE)
    if any(item["equal_bits"] is False for item in done):
        return False
    near = all(item["gradient_error"] <= bound for item in done)
    return (near or None if not errors else near) if done else None
