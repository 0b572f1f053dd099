"""Compared call: at a first call on a GPU a few plans are built, take turns, and the quickest runs from then on.

Place: loaded by ``compile.first_calls`` for graphs of GPUs alone. Input: an entry by estimates, and what it is held
against (``select.comparison``). Output: the quickest entry; what was found is remembered for later processes.
Invariants: those that were slower are let go; where memory runs out, the plan by estimates runs.
Units: seconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mixbackend.compile.program_entry import ProgramEntry
from mixbackend.compile.sized_graph import Row
from mixbackend.plan.choice import DEFAULT, Choice
from mixbackend.plan.environment import Environment
from mixbackend.reporting import Event
from mixbackend.select.by_range import RangedDecisions
from mixbackend.select.comparison import (
    BuiltCandidate,
    Harness,
    compare,
    failed_trial,
    simplest_first,
    trial_text,
)
from mixbackend.select.cross_size_check import checked_across_sizes
from mixbackend.select.decision import Decision, Trial, decide

NOT_COMPARED = "not compared with others: "


@dataclass(frozen=True)
class ComparedCall:
    """The first call of a graph in a range of sizes.

    Attributes:
        baseline: as it is placed by estimates.
        row: where it stands.
        bucket: the range of sizes.
        ranged: told of the decision.
        environment: what builds others.
        harness: how candidates take turns.
    """

    baseline: ProgramEntry
    row: Row
    bucket: int
    ranged: RangedDecisions
    environment: Environment
    harness: Harness

    def winner(self, choices: Sequence[Choice], values: Sequence[Any]) -> ProgramEntry:
        """The quickest of the plan by estimates and others; those that were slower are let go."""
        harness = self.harness
        rivals, failed = self._rivals(choices, harness.compiling_s)
        candidates = [*rivals, BuiltCandidate(DEFAULT, self.baseline, self.baseline.plan.estimated_s)]
        try:
            decision = self._decided(candidates, failed, values, harness)
            winner = next(item for item in candidates if item.choice == decision.choice)
            self._keep(winner, decision)
        except torch.OutOfMemoryError as error:
            self._emit(f"{NOT_COMPARED}{error}")
            winner = candidates[-1]
        for candidate in candidates:
            if candidate is not winner:
                candidate.entry.release()
        del candidates, rivals
        harness.give_back()
        return self._as_entry(winner)

    def _as_entry(self, winner: BuiltCandidate) -> ProgramEntry:
        entry = winner.entry
        assert isinstance(entry, ProgramEntry)
        return entry

    def _decided(
        self, candidates: Sequence[BuiltCandidate], failed: Sequence[Trial], values: Sequence[Any], harness: Harness
    ) -> Decision:
        with harness.prepared([candidate.entry for candidate in candidates], values) as call:
            *trials, baseline = compare(candidates, call, harness)
        sizes = self.ranged.ends(self.row.sized.regime(self.bucket))
        planner = self.environment.planner
        left = [
            checked_across_sizes(candidate.entry, trial, self.baseline, baseline, sizes, planner)
            for candidate, trial in zip(candidates, trials, strict=False)
        ]
        return decide(simplest_first((*left, baseline, *failed), self.baseline.plan))

    def _keep(self, winner: BuiltCandidate, decision: Decision) -> None:
        planned = self._as_entry(winner).as_choice(winner.choice)
        self.ranged.keep_compared(self.row.sized.regime(self.bucket), replace(decision, choice=planned))
        trials = ", ".join(f"{trial.choice} {trial_text(trial)}" for trial in decision.trials)
        self._emit(f"took {decision.choice} at the first call ({trials})")
        self._as_entry(winner).settle(decision)

    def _rivals(self, choices: Sequence[Choice], compiling_s: float) -> tuple[list[BuiltCandidate], list[Trial]]:
        """Those that could be built in time, and those that could not be built."""
        begun = time.monotonic()
        built: list[BuiltCandidate] = []
        failed: list[Trial] = []
        for choice in choices:
            if time.monotonic() - begun > compiling_s:
                break
            try:
                entry = self._rival(choice)
                built.append(BuiltCandidate(choice, entry, entry.plan.estimated_s))
            except Exception as error:
                failed.append(failed_trial(choice, 0.0, error))
        return built, failed

    def _rival(self, choice: Choice) -> ProgramEntry:
        sized, name = self.row.sized, self.row.id_of(self.bucket)
        at_home = self.bucket == sized.home_bucket
        regime = None if at_home else sized.regime(self.bucket)
        return self.row.build(sized.proposal_for(Decision(choice), name, self.environment, regime))

    def _emit(self, detail: str) -> None:
        self.environment.events.append(Event("tuning", self.baseline.graph.id, "", "", detail))
