"""An entry with a program, which it repairs.

Place: made by ``compile.sized_graph.Row``. Input: a program. Output: the graph's results; a ``GraphRecord``.
Invariants: a program is replaced as a whole, between calls: by a repair of the regions that failed in a call, by a
binding to other constants, by new recordings. A failing backend loses only the regions that failed.
No lock is held while a program is made: it takes the place of the one that it was made of, and where that one has been
replaced meanwhile, making begins again with its successor. One thread binds at a time, which ``compile.sized_graph``
and ``compile.weight_bindings`` see to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from mixbackend.backends.common import forks
from mixbackend.compile.build import bound_anew, repaired
from mixbackend.compile.entry import Entry
from mixbackend.compile.program import Program, same_key_regions, with_runner
from mixbackend.contracts.torch_compat import profiler_is_on, without_dispatch_modes
from mixbackend.execute.bindings import BackgroundRebind
from mixbackend.execute.faults import Failed, Unverified, region_name
from mixbackend.execute.region_errors import FailureKind, describe_region
from mixbackend.execute.run_function import Run
from mixbackend.plan.environment import Environment
from mixbackend.reporting import Event, GraphRecord, RegionRecord
from mixbackend.select.decision import Decision

if TYPE_CHECKING:
    from mixbackend.partitioner.counterfactuals import Counterfactuals

Fault = TypeVar("Fault")

WORTH_TELLING = 1e-3
"""Advice must promise to save this share of a graph's seconds."""

_EVENTS: Mapping[FailureKind, Any] = {"run": "quarantine", "verify": "verify_failed"}


class ProgramEntry(Entry):
    """See the module's docstring.

    Args:
        program: what runs.
        environment: where repairs are planned, compiled and emitted as events.
        on_trial: whether it is a challenger: what fails is told, and not repaired.
    """

    def __init__(self, program: Program, environment: Environment, on_trial: bool = False) -> None:
        super().__init__(environment)
        self._program = program
        self._on_trial = on_trial
        self.fault = ""
        """What went wrong in its calls while it was on trial."""
        self._unrepaired: deque[Failed] = deque()
        self._replacing = forks.lock()  # held to compare and to set, alone
        self._decision = program.proposal.decision
        self._selection: Mapping[str, Any] | None = None
        self._counterfactuals: Counterfactuals | None = None

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """Run the graph; empties the list."""
        return self._run(self._program, arguments)

    def apart(self) -> Run:
        """What runs the graph by recordings of its own, made anew; nothing keeps their results."""
        trial: Program | None = None

        def run(arguments: list[Any]) -> Sequence[Any]:
            nonlocal trial
            program = self._program
            if trial is None or trial.executors is not program.executors or trial.constants is not program.constants:
                trial = with_runner(program, self._environment, trial=True)
            return self._run(trial, arguments)

        return run

    def _run(self, program: Program, arguments: list[Any]) -> Sequence[Any]:
        try:
            return program.ranged(arguments) if profiler_is_on() else program.run(arguments)
        finally:
            if program.faults:
                self._repair(program)

    @property
    def program(self) -> Program:
        """What runs."""
        return self._program

    @property
    def champion(self) -> ProgramEntry:
        """The entry of the program that runs."""
        return self

    @property
    def settled(self) -> bool:
        """Whether its program changes by repairs alone."""
        return True

    def stop_trying(self) -> None:
        """It tries nothing."""

    def bind(self, constants: Mapping[str, torch.Tensor], rebind: BackgroundRebind | None = None) -> int:
        """See ``Entry.bind``."""
        while True:
            program = self._program
            jobs = program.jobs(constants)
            now = jobs if rebind is None else [job for job in jobs if not job.begun_in_background(rebind)]
            if self._replaced(program, bound_anew(program, constants, now, self._environment)):
                return len(jobs) - len(now)

    def rehearse(self, on: bool) -> None:
        """Record CUDA graphs for a trial from now on, or for good again; what was recorded before is let go."""
        while not self._replaced(program := self._program, with_runner(program, self._environment, on, on)):
            pass

    def promote(self) -> None:
        """It is on trial no more: what fails from now on is repaired, and what failed since it won."""
        self._on_trial = False
        with without_dispatch_modes():
            self._repair_all()

    def settle(self, decision: Decision, selection: Mapping[str, Any] | None = None) -> None:
        """Say what was measured of this graph after it was placed as the decision says; and of its selection."""
        self._decision, self._selection = decision, selection

    def release(self) -> None:
        """See ``Entry.release``."""
        self._program = self._program.released()

    def time_regions(self) -> None:
        """See ``Entry.time_regions``."""
        for executor in self.program.executors:
            executor.time_again()

    def record(self, *, advice: bool = False) -> GraphRecord:
        """See ``Entry.record``."""
        program = self._with_refusals()
        plan, exclusions = program.plan, program.proposal.exclusions
        rows = zip(plan.regions, program.compiled, program.executors, strict=True)
        regions = tuple(
            RegionRecord(
                id=planned.id,
                measured_s=executor.measured_s,
                cached=compiled.cached,
                reused_from=compiled.reused_from,
                accuracy=executor.code.accuracy,
                notes=(*compiled.region.notes, *(executor.bound.notes if executor.bound is not None else ())),
            )
            for planned, compiled, executor in rows
        )
        found = self._environment.planner.savings(program.graph, plan, exclusions) if advice else ()
        return GraphRecord(
            program.graph,
            plan,
            regions,
            advice=tuple(item for item in found if item.seconds > WORTH_TELLING * plan.estimated_s),
            layout=self.layout.record,
            tuning=self._decision.record(),
            counterfactuals=self._counterfactuals_of(program),
            selection=self._selection,
        )

    def _with_refusals(self) -> Program:
        """The present program, with all that its plan can say."""
        while True:
            program = self._program
            plan = self._environment.planner.with_refusals(program.graph, program.plan)
            if plan is program.plan:
                return program
            told = replace(program, plan=plan)
            if self._replaced(program, told):
                return told

    def _counterfactuals_of(self, program: Program) -> Counterfactuals:
        """Of a plan: one object for all reports, since what it found is kept in it."""
        if self._counterfactuals is None or self._counterfactuals.question.plan is not program.plan:
            exclusions = program.proposal.exclusions
            self._counterfactuals = self._environment.planner.counterfactuals(
                program.graph, program.plan, exclusions, self._decision.choice
            )
        return self._counterfactuals

    def _repair(self, program: Program) -> None:
        """Place anew what failed in a call; raises nothing into it."""
        with without_dispatch_modes():
            for fault in _taken(program.faults):
                where = f"{fault.text} ({describe_region(fault.region)})"
                if isinstance(fault, Unverified):
                    self._emit("unverified", region_name(fault.region), fault.backend.name, where)
                    continue
                if fault.is_news:
                    self._environment.compile_cache.quarantine(fault.backend, fault.region, fault.text)
                    self._emit(_EVENTS[fault.kind], region_name(fault.region), fault.backend.name, where)
                self._unrepaired.append(fault)
                if self._on_trial:
                    self.fault = fault.text
            # Asked behind all of it: it may have been promoted meanwhile.
            if not self._on_trial:
                self._repair_all()

    def _repair_all(self) -> None:
        for fault in _taken(self._unrepaired):
            self._repair_after(fault)

    def _repair_after(self, fault: Failed) -> None:
        while True:
            program = self._program
            failed = program.planned(fault.region)
            if failed is None:  # a repair has replaced it meanwhile
                return
            moved = same_key_regions(program.regions, failed)
            successor = repaired(program, moved, self._environment)
            if self._replaced(program, successor):
                break
        nodes = frozenset(name for planned in moved for name in planned.nodes)
        owners = sorted({item.backend for item in successor.plan.regions if nodes & set(item.nodes)})
        self._emit("repair", failed.planned.id, fault.backend.name, f"now on {', '.join(owners)}")

    def _replaced(self, program: Program, successor: Program) -> bool:
        """Put a program in the place of the one that it was made of, unless that one has been replaced."""
        with self._replacing:
            if self._program is not program:
                return False
            self._program = successor
            return True

    def _emit(self, kind: Any, region: str, backend: str, detail: str) -> None:
        self._environment.events.append(Event(kind, self.graph.id, region, backend, detail))


def _taken(faults: deque[Fault]) -> Iterator[Fault]:
    """One after the other; several threads may take of them."""
    while True:
        try:
            yield faults.popleft()
        except IndexError:
            return
