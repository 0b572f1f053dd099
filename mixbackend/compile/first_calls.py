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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mixbackend.compile.entry import Entry
from mixbackend.compile.program_entry import ProgramEntry
from mixbackend.compile.sized_graph import Row
from mixbackend.graph.identity import Captured
from mixbackend.plan.environment import Environment
from mixbackend.reporting import Event
from mixbackend.select.by_range import RangedDecisions
from mixbackend.select.decision import UNTUNED
from mixbackend.select.live.fields import field_of
from mixbackend.select.live.steps import Hold, situation, why_not


def quickest(
    baseline: ProgramEntry,
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
    # Else nothing is compared, nor loaded for it.
    found = first.compared(placed, values, hold) if config.search.mode == "measure" else None
    if found is not None:
        return found
    sizes = map(_without_values, row.sized.prepared.whole(values, weights)) if captured.dynamic else ()
    return first.tried(placed, values, tuple(sizes), hold)


@dataclass(frozen=True)
class _FirstCall:
    baseline: ProgramEntry
    row: Row
    bucket: int
    ranged: RangedDecisions
    environment: Environment

    def tried(self, placed: Captured, values: Sequence[Any], sizes: tuple[Any, ...], hold: Hold | None) -> Entry:
        """An entry that finds the quickest program by its calls."""
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
        from mixbackend.compile.tried_entry import TriedEntry

        return TriedEntry(self.baseline, self.row, self.bucket, challengers, self.ranged, sizes)

    def compared(self, placed: Captured, values: Sequence[Any], hold: Hold | None) -> ProgramEntry | None:
        """The quickest of a few that are built now; ``None`` where nothing is compared at the first call."""
        from mixbackend.compile.compared_call import ComparedCall
        from mixbackend.select.comparison import harness_for

        harness = harness_for(placed, self.environment)
        if harness is None:
            return None
        if self.baseline.program.proposal.decision is not UNTUNED:
            return self.baseline
        rivals = harness.rivals(self.baseline, self.environment.planner)
        if not rivals:
            return self.baseline
        known = hold.value if hold is not None and hold.for_good else ""
        reason = known or harness.why_not(self.baseline, values, len(rivals))
        if reason:
            return self.leave(reason)
        call = ComparedCall(self.baseline, self.row, self.bucket, self.ranged, self.environment, harness)
        return call.winner(rivals, values)

    def leave(self, reason: str) -> ProgramEntry:
        """The plan by estimates, which is held against nothing; says why."""
        detail = f"not compared with others: {reason}"
        self.environment.events.append(Event("tuning", self.baseline.graph.id, "", "", detail))
        return self.baseline


def _without_values(value: Any) -> Any:
    return torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, torch.Tensor) else value
