"""A tried entry: an entry that also finds out, by its calls, which program runs them best.

Place: in the cell of ``compile.sized_graph.Row`` in place of the entry that it begins with, until that is settled; then
the program that won has the cell. Made by ``compile.executable``. Input: an entry by estimates, challengers.
Output: the graph's results; events; the decision, for later processes.
Method: ``select.live``. A challenger is planned and compiled behind (``compile.behind_worker``), and loaded between two
calls; where nothing is done behind it is built between two calls, once calls have paid for that.
Invariants: champion and challenger are bound to the same constants at every moment that they may run. What cannot be
bound again never runs again. Letting go takes no lock: it may come in the middle of anything.
Units: seconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from mixbackend.compile.challenger_build import ChallengerBuild, UnbuiltError, challenger_job
from mixbackend.compile.placeholder_entry import PlaceholderEntry
from mixbackend.compile.program_entry import ProgramEntry
from mixbackend.compile.sized_graph import Row
from mixbackend.contracts.torch_compat import without_dispatch_modes
from mixbackend.execute.bindings import BackgroundRebind
from mixbackend.execute.cuda_graphs import device_of
from mixbackend.execute.state_restore import Changes
from mixbackend.host.undisturbed import undisturbed
from mixbackend.plan.choice import DEFAULT, Choice
from mixbackend.reporting import Event, GraphRecord
from mixbackend.select.by_range import RangedDecisions
from mixbackend.select.candidates import Content, content_of
from mixbackend.select.cross_size_check import worst_elsewhere
from mixbackend.select.decision import Decision
from mixbackend.select.live.arbiter import arbiter
from mixbackend.select.live.challengers import Challenger
from mixbackend.select.live.gpu_stage import GpuStage
from mixbackend.select.live.gpu_watch import GpuWatch
from mixbackend.select.live.live_calls import LiveCalls
from mixbackend.select.live.overlaps import overlaps
from mixbackend.select.live.preparation import Contender, Preparation
from mixbackend.select.live.rehearsed_calls import RehearsedCalls
from mixbackend.select.live.selection import Selection
from mixbackend.select.live.standing import SAME_PLAN
from mixbackend.select.live.steps import is_recomputation, situation

logger = logging.getLogger("mixbackend")

clock = time.perf_counter
"""What calls are timed by, in seconds."""


class TriedEntry(PlaceholderEntry):
    """See the module's docstring.

    Args:
        champion: what runs first.
        row, bucket: its cell.
        challengers: what it is held against; not empty.
        ranged: told of the decision.
        sizes: like the inputs of a call of the captured graph, without their values.
    """

    def __init__(
        self,
        champion: ProgramEntry,
        row: Row,
        bucket: int,
        challengers: Sequence[Challenger],
        ranged: RangedDecisions,
        sizes: Sequence[Any],
    ) -> None:
        super().__init__(champion, row, bucket)
        self._champion: ProgramEntry = champion
        self._ranged, self._sizes = ranged, sizes
        self._challenger: ProgramEntry | None = None
        self._kept: Decision | None = None
        estimated_s = champion.plan.estimated_s
        device = device_of(champion.graph)
        self._gpus = () if device is None else (device,)
        watch = None if device is None else GpuWatch(device)
        known = champion.program.proposal.decision
        of_process = arbiter(), overlaps(), clock()
        warm_up = self._environment.background.warm_up
        selection = Selection(estimated_s, challengers, *of_process, watch is not None, known, warm_up)
        self._phase = champion.graph.phase
        now = partial(situation, of_backward=self._phase == "backward")
        sizes_of = row.sized.size_of_call()
        stage = None if device is None or not row.environment.records else GpuStage(device)
        self._records = stage is not None
        given = (self._contender(champion), selection, self, sizes_of, now, clock, watch)
        self._live = LiveCalls(*given) if stage is None else RehearsedCalls(stage, *given)

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """Run the graph; empties the list."""
        if self._released or is_recomputation(self._phase):
            self._live.selection.stop()
        try:
            return self._live(arguments)
        finally:
            if self._live.has_news:
                self._hear()

    # --- challengers -------------------------------------------------------------------------------------------------

    def prepare(self, challenger: Challenger) -> Preparation:
        """Begin to build a challenger; see ``preparation.Preparer``."""
        text = self._ranged.text(self._sizes)
        environment, name = self._environment, self.graph.id
        number = None
        if text is not None and environment.background.on:
            number = environment.background.submit(challenger_job(text, challenger.choice, environment, name))
        constants = sum(value.nbytes for value in self._row.constants.values())
        return ChallengerBuild(self, challenger.choice, environment, name, number, constants)

    def runs(self, planned: Choice) -> bool:
        """Whether a choice came to the plan that runs."""
        return _content(planned) == _content(self._champion.as_choice(DEFAULT))

    def load(self, choice: Choice) -> Contender:
        """Build a challenger from what is compiled, and compile the rest.

        Raises:
            UnbuiltError: it is the plan that runs.
            Exception: it cannot be placed, compiled or bound.
        """
        row, bucket = self._row, self._bucket
        regime = None if bucket == row.sized.home_bucket else row.sized.regime(bucket)
        environment = self._environment
        with self._changing, without_dispatch_modes(), undisturbed(), torch.no_grad():
            proposal = row.sized.proposal_for(Decision(choice), row.id_of(bucket), environment, regime)
            challenger = row.build(proposal, on_trial=True)
            if self.runs(challenger.as_choice(DEFAULT)):
                challenger.release()
                raise UnbuiltError(SAME_PLAN)
            row.settle_watch()
            sizes = self._ranged.ends(row.sized.regime(bucket))
            elsewhere = worst_elsewhere(challenger, self._champion, sizes, environment.planner)
            self._challenger = challenger
            if self._released:
                challenger.release()
                raise UnbuiltError("the graph was released")
        return self._contender(challenger, elsewhere)

    def _contender(self, entry: ProgramEntry, elsewhere: float = 1.0) -> Contender:
        names = [node.name for node in entry.layout.module.graph.find_nodes(op="placeholder")]
        changes = Changes.of_graphs([entry.graph], names, self._gpus)
        apart = entry.apart if self._records else None
        return Contender(entry, changes, partial(self._let_go, entry), lambda: entry.fault, elsewhere, apart)

    def _let_go(self, entry: ProgramEntry) -> None:
        """Nothing will run it any more."""
        entry.release()
        if self._challenger is entry:
            self._challenger = None

    def _hear(self) -> None:
        """Tell what became of challengers; once nothing is left to be tried, the champion has the cell."""
        with self._changing:
            news = self._live.take_news()
            for happened in news:
                self._environment.events.append(Event("tuning", self.graph.id, "", "", str(happened)))
            champion = self._live.champion.run
            if champion is self._challenger:
                self._champion, self._challenger = self._challenger, None
                self._champion.promote()
            self._row.settle_watch()
            if news or self._live.over:
                self._keep(self._live.selection.decision())
            if self._live.over:
                self._settle()

    def _keep(self, decision: Decision) -> None:
        """Remember what is known so far: this process may end before all challengers were tried."""
        if not decision.trials or decision == self._kept:
            return
        self._kept = decision
        if decision.measured:
            decision = replace(decision, choice=self._champion.as_choice(decision.choice))
        try:
            self._ranged.keep_compared(self._row.sized.regime(self._bucket), decision)
        except Exception:
            logger.warning("what was decided for %s is not remembered", self.graph.id, exc_info=True)

    def _settle(self) -> None:
        selection = self._live.selection
        self._champion.settle(selection.decision(), selection.standing().to_dict())
        self.give_way(self._champion)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to be tried."""
        return self._released or self._live.over

    def stop_trying(self) -> None:
        """See ``Entry.stop_trying``; the next calls let go of what was compared."""
        self._live.selection.stop()

    # --- as an entry -------------------------------------------------------------------------------------------------

    def bind(self, constants: Mapping[str, torch.Tensor], rebind: BackgroundRebind | None = None) -> int:
        """See ``Entry.bind``; the challenger is bound as well, or given up."""
        with self._changing:
            pending = super().bind(constants, rebind)
            challenger = self._challenger
            if challenger is not None:
                try:
                    pending += challenger.bind(constants, rebind)
                except Exception as error:
                    # A call may run it before it is out: with any constants, as eager does.
                    challenger.fault = f"it cannot be bound to other constants: {error}"
                    challenger.release()
                    self._live.withdraw(challenger.fault)
            return pending

    def release(self) -> None:
        """See ``Entry.release``; takes no lock. A call that goes on meanwhile is answered."""
        super().release()
        self._live.selection.leave()
        challenger = self._challenger
        if challenger is not None:
            challenger.release()

    def record(self, *, advice: bool = False) -> GraphRecord:
        """See ``Entry.record``."""
        return replace(super().record(advice=advice), selection=self._live.selection.standing().to_dict())


def _content(planned: Choice) -> Content:
    assert planned.plan is not None, "it was placed"
    return content_of(planned.layout, planned.plan)
