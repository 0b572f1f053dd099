"""Entries that hold a cell of ``compile.sized_graph.Row`` for a while, until it is known which program is to run there.

Place: made by ``compile.executable``. Input: the entry that runs meanwhile. Output: what it returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mixbackend.backends.common import forks
from mixbackend.compile.entry import Entry
from mixbackend.compile.making import Making
from mixbackend.compile.program import Program, Proposal
from mixbackend.compile.sized_graph import Row
from mixbackend.contracts.torch_compat import without_dispatch_modes
from mixbackend.execute.bindings import BackgroundRebind
from mixbackend.host.undisturbed import undisturbed
from mixbackend.reporting import Event, GraphRecord


class PlaceholderEntry(Entry):
    """An entry that another one runs for; see the module's docstring.

    Args:
        champion: what runs.
        row, bucket: the cell.
    """

    def __init__(self, champion: Entry, row: Row, bucket: int) -> None:
        super().__init__(row.environment)
        self._champion, self._row, self._bucket = champion, row, bucket
        self._changing = forks.long_reentrant_lock()  # of those that bind or build programs; letting go takes no lock
        self._released = False

    @property
    def champion(self) -> Entry:
        """What runs."""
        return self._champion

    def give_way(self, successor: Entry) -> None:
        """Leave the cell to another entry, and the cells of sizes that have no program of their own."""
        for bucket in range(len(self._row.entries)):
            self._row.enter(bucket, successor, in_place_of=self)

    @property
    def settled(self) -> bool:
        """It is not, as long as it holds the cell."""
        return self._row.held(self._bucket) is not self

    @property
    def program(self) -> Program:
        """What runs."""
        return self._champion.program

    def stop_trying(self) -> None:
        """See ``Entry.stop_trying``."""
        self._champion.stop_trying()

    def bind(self, constants: Mapping[str, torch.Tensor], rebind: BackgroundRebind | None = None) -> int:
        """See ``Entry.bind``."""
        with self._changing:
            return self._champion.bind(constants, rebind)

    def release(self) -> None:
        """See ``Entry.release``."""
        self._released = True
        self._champion.release()

    def time_regions(self) -> None:
        """See ``Entry.time_regions``."""
        self._champion.time_regions()

    def record(self, *, advice: bool = False) -> GraphRecord:
        """See ``Entry.record``."""
        return self._champion.record(advice=advice)


class FollowingEntry(PlaceholderEntry):
    """The graph with further weights: runs the plan by estimates until calls with the first weights found a better one.

    Args:
        champion: the plan by estimates.
        row, bucket: the cell.
        leading: the row of the first weights.
    """

    def __init__(self, champion: Entry, row: Row, bucket: int, leading: Row) -> None:
        super().__init__(champion, row, bucket)
        self._leading = leading
        self._following = forks.long_lock()

    @property
    def settled(self) -> bool:
        """Whether what it follows is; it tries nothing itself."""
        cell = self._leading.entries[self._bucket]
        return cell is None or (not isinstance(cell, Making) and cell.settled)

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """Run the graph; empties the list."""
        if self.settled and self._following.acquire(blocking=False):
            try:
                self._follow()
            finally:
                self._following.release()
        return self._champion(arguments)

    def _follow(self) -> None:
        """Build what the leader runs; if that fails, the plan by estimates stays."""
        leader = self._leading.held(self._bucket)
        if leader is not None and leader.program.plan.regions != self.plan.regions:
            try:
                self._build(leader.program.proposal)
            except Exception as error:
                detail = f"the plan by estimates stays, the better one cannot be built with these weights: {error}"
                self._environment.events.append(Event("fallback", self.graph.id, "", "", detail))
        self.give_way(self._champion)

    def _build(self, proposal: Proposal) -> None:
        old, row = self._champion, self._row
        with without_dispatch_modes(), undisturbed(), torch.no_grad():
            champion = row.build(row.sized.renamed(proposal, self.graph.id))
            row.enter(self._bucket, champion, in_place_of=self)
        self._champion = champion
        old.release()
        row.settle_watch()
