"""First calls: a plan by estimates is held against others at the first call in its range of sizes.

Place: asked by ``compile.executable``, once for each bucket. Input: an entry by estimates, bound, and the values of the
call. Output: the entry that runs from now on; what was found is remembered for later processes.
Method: the plan that looks best among many is often not the quickest. The user's own calls find out
(``compile.tried_entry``). Where a GPU is to be measured, a few others (``select.comparison``) are built at the first
call as well, and all take turns, until the quickest is told from the others or they have had enough. Of a graph with
symbolic sizes the quickest here must not promise to be slower at the other sizes that it will run.
Not compared: where the user switched selecting off, under deterministic algorithms, in a job of several ranks.
Invariants: nothing is called more often than the user asked unless that can be put back, before each run; the time of
compiling and that of running are bounded, but for one compilation and one round. Candidates check their regions like
any other graph.
Units: seconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mixbackend.compile.entry import Entry
from mixbackend.compile.sized_graph import Row
from mixbackend.compile.tried_entry import TriedEntry
from mixbackend.graph.identity import Captured
from mixbackend.plan.choice import DEFAULT, Choice
from mixbackend.plan.environment import Environment
from mixbackend.reporting import Event
from mixbackend.select.by_range import RangedDecisions
from mixbackend.select.comparison import (
    BuiltCandidate,
    Harness,
    compare,
    failed_trial,
    harness_for,
    simplest_first,
    trial_text,
)
from mixbackend.select.cross_size_check import checked_across_sizes
from mixbackend.select.decision import UNTUNED, Decision, Trial, decide
from mixbackend.select.live.fields import field_of
from mixbackend.select.live.steps import Hold, situation, why_not


def quickest(
    baseline: Entry,
    row: Row,
    bucket: int,
    values: Sequence[Any],
    ranged: RangedDecisions,
    captured: Captured,
    weights: Sequence[torch.Tensor] = (),
) -> Entry:
    """The quickest entry for a bucket, or one that is going to find it.

    Args:
        baseline: as it is placed by estimates.
        row: where it stands: what builds others, and the constants they are bound to.
        bucket: a range of sizes.
        values: inputs of the placed graph in the first call; they are left as they are.
        ranged: what is known of the graph; told of the decision.
        captured: the graph.
        weights: that the constants of the call were made of.
    """
    first, config = _FirstCall(baseline, row, bucket, ranged, row.environment), row.environment.config
    hold = why_not(situation(off=config.select == "off"))
    if hold is Hold.OFF or config.objective != "latency" or ranged.measuring:
        # What was to be measured and could not be is placed by estimates.
        return baseline
    if captured.dynamic and row.sized.ladder is None:
        # No number of a call tells which sizes a decision would be for.
        return baseline
    placed = replace(captured, module=baseline.layout.module)
    harness = harness_for(placed, row.environment)
    if harness is None:
        sizes = map(_without_values, row.sized.prepared.whole(values, weights)) if captured.dynamic else ()
        return first.tried(placed, values, tuple(sizes), hold)
    if baseline.program.proposal.decision is not UNTUNED:
        return baseline
    rivals = harness.rivals(baseline, row.environment.planner)
    if not rivals:
        return baseline
    if hold is not None and hold.for_good:
        return first.leave(hold.value)
    return first.winner(harness, rivals, values)


@dataclass(frozen=True)
class _FirstCall:
    baseline: Entry
    row: Row
    bucket: int
    ranged: RangedDecisions
    environment: Environment

    def tried(self, placed: Captured, values: Sequence[Any], sizes: tuple[Any, ...], hold: Hold | None) -> Entry:
        """An entry whose calls find the quickest program."""
        names = [node.name for node in placed.module.graph.find_nodes(op="placeholder")]
        field = field_of(self.baseline)
        if field is None or not field.worth_trying_others(self.baseline, names):
            return self.baseline
        known = self.baseline.program.proposal.decision
        challengers = known.waiting or field.challengers(self.baseline, self.environment.planner)
        if not challengers:
            return self.baseline
        reason = hold.value if hold is not None and hold.for_good else field.why_not_now(self.baseline, names, values)
        if reason:
            return self.leave(reason)
        return TriedEntry(self.baseline, self.row, self.bucket, challengers, self.ranged, sizes)

    def winner(self, harness: Harness, choices: Sequence[Choice], values: Sequence[Any]) -> Entry:
        reason = harness.why_not(self.baseline, values, len(choices))
        if reason:
            return self.leave(reason)
        rivals, failed = self._rivals(choices, harness.compiling_s)
        candidates = [*rivals, BuiltCandidate(DEFAULT, self.baseline, self.baseline.plan.estimated_s)]
        try:
            decision = self._decided(candidates, failed, values, harness)
            winner = next(item for item in candidates if item.choice == decision.choice)
            self._keep(winner, decision)
        except torch.OutOfMemoryError as error:
            self.leave(str(error))
            winner = candidates[-1]
        for candidate in candidates:
            if candidate is not winner:
                candidate.entry.release()
        del candidates, rivals
        harness.give_back()
        return self._as_entry(winner)

    def leave(self, reason: str) -> Entry:
        """The plan by estimates, which is held against nothing; says why."""
        self._emit(f"not compared with others: {reason}")
        return self.baseline

    def _as_entry(self, winner: BuiltCandidate) -> Entry:
        entry = winner.entry
        assert isinstance(entry, Entry)
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

    def _rival(self, choice: Choice) -> Entry:
        sized, name = self.row.sized, self.row.id_of(self.bucket)
        at_home = self.bucket == sized.home_bucket
        regime = None if at_home else sized.regime(self.bucket)
        return self.row.build(sized.proposal_for(Decision(choice), name, self.environment, regime))

    def _emit(self, detail: str) -> None:
        self.environment.events.append(Event("tuning", self.baseline.graph.id, "", "", detail))


def _without_values(value: Any) -> Any:
    return torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, torch.Tensor) else value
