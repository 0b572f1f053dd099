"""Decision store: what was decided at first calls, kept for later processes.

Place: beside ``tuner`` (its decisions come before these); written and read by ``by_range``.
A decision may have challengers left: it is what a process knew so far, and the next one begins with it.
Invariants: kept under the key of the graph and its range of sizes, apart from what tuning decided, and apart for calls
that are replayed.
"""

from __future__ import annotations

from mixbackend.plan.environment import Environment
from mixbackend.select.decision import Decision, joined
from mixbackend.select.tuner import TuningTask


def remembered(task: TuningTask, environment: Environment) -> Decision:
    """What was decided at the first call of this graph before; ``UNTUNED`` if nothing."""
    return Decision.read(environment.storage.database.decision(_key(task, environment)))


def remember(task: TuningTask, decision: Decision, environment: Environment) -> None:
    """Keep what was decided by calls; tuning does not take it for a decision of its own."""
    kept = joined(remembered(task, environment), decision)
    environment.storage.database.set_decision(
        _key(task, environment), task.kept(kept), device=task.device, fingerprints=environment.fingerprints
    )


def _key(task: TuningTask, environment: Environment) -> str:
    # What is quickest when replayed may not be when each kernel is launched, and the other way round.
    replayed = environment.records and task.device.startswith("cuda")
    return f"{task.key}-first-call{'-replayed' if replayed else ''}"
