"""Cells: what a cell of an executable's table gets when a call needs it.

Place: asked by ``compile.executable`` for a cell that the call has claimed. Input: what the call's weights are bound
to, the range of its sizes, its values. Output: the entry, which stands in the cell.
Invariants: among plans is chosen once in each range of sizes, with the first weights that come with such; rows of
further weights follow those of the first. What cannot be built is run by the plan of other sizes, with an event, unless
the policy is to raise.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from mixbackend.backends.common import forks
from mixbackend.compile.entry import Entry
from mixbackend.compile.first_calls import quickest
from mixbackend.compile.making import Making, ReenteredError
from mixbackend.compile.placeholder_entry import FollowingEntry
from mixbackend.compile.program_entry import ProgramEntry
from mixbackend.compile.propose import Outlook
from mixbackend.compile.sized_graph import Row
from mixbackend.compile.weight_bindings import Binding
from mixbackend.plan.environment import Environment
from mixbackend.reporting import Event
from mixbackend.select.decision import UNTUNED, Decision

logger = logging.getLogger("mixbackend")


class Cells:
    """See the module's docstring.

    Args:
        outlook: the graph, and what is known of it by range of sizes.
        leading: the row of the first weights.
        environment: what builds programs.
    """

    def __init__(self, outlook: Outlook, leading: Row, environment: Environment) -> None:
        self._captured, self._ranged, self._agreement = outlook.captured, outlook.ranged, outlook.agreement
        self._leading, self._environment = leading, environment
        self._lock = forks.lock()
        self._selected: set[int] = set()
        forks.follow(self)

    def fill(self, binding: Binding, bucket: int, values: Sequence[Any], live: bool) -> Entry:
        """Fill a cell that this call has claimed.

        Args:
            binding: what the call's weights are bound to.
            bucket: the range of its sizes.
            values: its inputs.
            live: whether weights are inputs that were constants before.
        """
        row = binding.row
        entry = row.home if bucket == row.sized.home_bucket else self._built(binding, bucket, values)
        with self._lock:
            selected = bucket in self._selected
            self._selected.add(bucket)
        if not live and not selected:
            entry = self._select(binding, bucket, entry, values)
        elif not live and row is not self._leading:
            entry = self._following(row, bucket, entry)
        row.enter(bucket, entry)
        return entry

    def _built(self, binding: Binding, bucket: int, values: Sequence[Any]) -> Entry:
        """Build the program of a bucket; the first call's serves it too if that fails."""
        row, regime = binding.row, binding.row.sized.regime(bucket)
        try:
            decision = self._decision(binding, bucket, values)
            proposal = row.sized.proposal(bucket, row.id_of(bucket), decision, self._environment)
            if self._agreement is not None:
                proposal = self._agreement.in_range(proposal, regime)
            entry = row.build(proposal)
        except Exception as error:
            if self._environment.config.on_failure == "raise" or isinstance(error, ReenteredError):
                raise
            logger.debug("compiling for sizes %s failed", regime, exc_info=True)
            detail = f"sizes {regime} keep the plan of other sizes: {error}"
            self._environment.events.append(Event("fallback", row.graph_id, "", "", detail))
            with self._lock:
                self._selected.add(bucket)
            return row.home
        if binding.watch is not None:
            binding.watch.settle()  # what shares the weights' memory now is ours
        return entry

    def _decision(self, binding: Binding, bucket: int, values: Sequence[Any]) -> Decision:
        ranged, row = self._ranged, binding.row
        if ranged is None:
            return UNTUNED
        if row is not self._leading:
            cell = self._leading.entries[bucket]
            if isinstance(cell, Making) and ranged.measuring:
                cell.wait()  # it is measured once
            earlier = self._leading.held(bucket)
            if earlier is not None:
                return earlier.program.proposal.decision
        regime = row.sized.regime(bucket)
        assert regime is not None, "there is one plan for all sizes"
        whole = row.sized.prepared.whole(values, binding.weights)
        return ranged.decide(regime, whole, row.sized.choice_at_home(row.home))

    def _select(self, binding: Binding, bucket: int, entry: Entry, values: Sequence[Any]) -> Entry:
        """Hold a plan by estimates against others, once in each bucket."""
        known = entry.program.proposal.decision
        if self._ranged is None or (known is not UNTUNED and not known.waiting):
            return entry
        assert isinstance(entry, ProgramEntry), "others are tried once"
        winner = quickest(entry, binding.row, bucket, values, self._ranged, self._captured, binding.weights)
        if winner is not entry:
            binding.row.settle_watch()
        return winner

    def _following(self, row: Row, bucket: int, entry: Entry) -> Entry:
        """An entry of further weights, while calls with the first ones look for a better program."""
        if isinstance(entry, FollowingEntry):
            return entry
        following = FollowingEntry(entry, row, bucket, self._leading)
        return entry if following.settled else following

    def after_fork(self) -> None:
        """In the child of a fork: what another thread was choosing is chosen again."""
        making = {bucket for bucket, cell in enumerate(self._leading.entries) if isinstance(cell, Making)}
        self._selected -= making
