"""The executable of one captured graph: a table from (size bucket, weight binding) to the program that runs it.

Place: what ``compile.driver`` returns and torch calls. Input: what was proposed and built before the first call.
Output: a callable on the list of graph inputs; records for reports.
A call with an argument that has its values elsewhere than in its memory (``unwritten_values``) is eager's. Any other
finds the binding of its weights, reads its bucket off the other inputs, and runs the entry there. What the table
lacks is made by the call that needs it: constants of new weights, and what a cell gets (``compile.cells``).
Invariants: locks are held for writes to tables only. One thread makes what is missing; others that need that very cell
wait for it, no others do. What is called while it is built, by what builds it, is eager's, and so is a graph that
cannot be built.
The first results are held against what they are to share memory with in eager.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

import torch

from mixbackend.backends.common import forks
from mixbackend.compile.abandoned_weights import drop_after_collections
from mixbackend.compile.build import tell_unbuilt
from mixbackend.compile.cells import Cells
from mixbackend.compile.entry import Entry
from mixbackend.compile.making import Making, ReenteredError, claimed
from mixbackend.compile.propose import Outlook, by_estimates
from mixbackend.compile.sized_graph import Row
from mixbackend.compile.weight_bindings import Binding, RestlessWeightsError, WeightBindings
from mixbackend.contracts import VerificationError
from mixbackend.contracts.torch_compat import values_lie_in_memory, without_dispatch_modes
from mixbackend.execute.run_function import Run
from mixbackend.execute.unwritten_values import changing_places
from mixbackend.execute.weights.traced_shapes import TracedShapes
from mixbackend.execute.weights.watch import used
from mixbackend.graph.copies import compiled_bodies
from mixbackend.graph.identity import Captured
from mixbackend.graph.prepared import prepare
from mixbackend.host.full_collections import full_collections_later
from mixbackend.host.undisturbed import undisturbed
from mixbackend.plan.environment import Environment
from mixbackend.reporting import Event, GraphRecord
from mixbackend.reporting.records import IdentityRecord


class State(Enum):
    """Of an executable."""

    NEW = "no call has ended yet"
    RUNNING = "programs run it"
    LIVE = "programs run it, with weights as inputs that were constants before"
    EAGER = "eager runs it"
    RELEASED = "torch has dropped it"


class Executable:
    """See the module's docstring.

    Args:
        outlook: how the graph is placed, and what its first calls are to find out.
        first: the row that was built for the sizes it was captured at; ``None`` where measuring needs values first.
        environment: configuration, backends, costs and caches.
    """

    def __init__(self, outlook: Outlook, first: Row | None, environment: Environment) -> None:
        self._outlook = outlook
        captured = outlook.captured
        self._sharing = captured.expected_sharing
        self.bodies = tuple(body.run for body in compiled_bodies(captured.module) if isinstance(body.run, Executable))
        """Of the subgraphs that its ops carry."""
        self._looked_at = changing_places(captured.module, captured.roles)
        self._traced = TracedShapes(captured.module, captured.roles)
        self._reshaped = False
        self._environment = environment
        self._lock = forks.lock()
        self._steps: dict[str, Any] = {}  # cells of what changes the graph as a whole; they never hold a value
        self._rows: list[Row] = []
        self._whole: Row  # the one that was taken last
        self._cells: Cells
        self._bindings: WeightBindings | None = None
        self._latest: Binding | None = None
        self.state = State.NEW
        if first is not None:
            self._take(first)
        drop_after_collections(self)

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """Run the graph; empties the list."""
        for place in self._looked_at:
            if not values_lie_in_memory(arguments[place]):
                return self.run_eager(arguments)
        binding = self._latest
        if binding is None or not binding.holds(arguments):
            # Layers that share a graph come with their weights in turns.
            binding = None if binding is None or self._bindings is None else self._bindings.holding(arguments)
            if binding is None:
                return self._slow(arguments)
        values = binding.values(arguments)
        row = binding.row
        bucket = 0 if row.bucket_of is None else row.bucket_of(values)
        entry: Entry | Making[Entry] | Run | None = row.entries[bucket]
        if not entry:
            entry = self._entry(binding, bucket, values)
        if binding.watch is None:
            return entry(values)
        begin = time.perf_counter()
        results = entry(values)
        used(time.perf_counter() - begin)
        return results

    # --- what the table lacks ----------------------------------------------------------------------------------------

    def _slow(self, arguments: list[Any]) -> Sequence[Any]:
        if self.state is State.EAGER or not all(map(values_lie_in_memory, arguments)):
            return self.run_eager(arguments)
        difference = self._traced.difference(arguments)
        if difference:
            if not self._reshaped:
                self._reshaped = True
                self._emit("fallback", f"eager runs such calls: {difference}")
            return self.run_eager(arguments)
        if self.state is not State.NEW:
            return self._run(arguments)
        given = list(arguments)
        results = list(self._run(arguments))
        problems = self._sharing.problems(given, results)
        with self._lock:
            if self.state is State.NEW:
                self.state = State.RUNNING
        return self._apart(results, problems) if problems else results

    def _run(self, arguments: list[Any]) -> Sequence[Any]:
        """A call that may have to make what it needs."""
        with without_dispatch_modes(), undisturbed(), full_collections_later():
            try:
                entry, values = self._made(arguments)
            except ReenteredError:
                entry, values = self.run_eager, arguments
        return entry(values)

    def _made(self, arguments: list[Any]) -> tuple[Run, list[Any]]:
        if self._outlook.sized is None:
            self._measure(arguments)
        if self.state is State.EAGER:
            return self.run_eager, arguments
        binding = self._binding(arguments)
        values = binding.values(arguments)
        bucket = 0 if binding.row.bucket_of is None else binding.row.bucket_of(values)
        entry = self._entry(binding, bucket, values)
        self._enter(binding)
        return entry, values

    def _measure(self, values: Sequence[Any]) -> None:
        """Decide by measuring with the values of the first call, then build what was decided."""
        with claimed(self._lock, self._steps, "measure"):
            if self._outlook.sized is not None or self.state is State.EAGER:
                return
            outlook = self._outlook.measured(values, self._environment)
            assert outlook.sized is not None
            try:
                self._take(Row.begun(outlook.sized, outlook.captured.id, self._environment))
            except Exception as error:
                tell_unbuilt(outlook.captured.id, error, self._environment)
                self.state = State.EAGER
            self._outlook = outlook

    def _binding(self, arguments: Sequence[Any]) -> Binding:
        bindings = self._bindings
        if bindings is None:
            return Binding(self._whole)
        # What calls found out since about the first weights holds for further ones.
        bindings.place_as(self._rows[0].home.program.proposal)
        try:
            binding = bindings.of(bindings.weights(arguments))
        except RestlessWeightsError as reason:
            return self._live(str(reason))
        self._add(binding.row)
        return binding

    def _live(self, reason: str) -> Binding:
        """Weights are inputs from now on."""
        with claimed(self._lock, self._steps, "live"):
            if self._bindings is not None:
                captured, environment = self._outlook.captured, self._environment
                self._emit("fallback", f"weights are live inputs from now on: {reason}")
                sized = by_estimates(captured, prepare(captured, frozenset()), environment)
                row, constants = Row.begun(sized, f"{captured.id}+live", environment), self._rows
                self._take(row)
                self.state, self._bindings = State.LIVE, None
                for other in constants:
                    other.release()
        return Binding(self._whole)

    def _entry(self, binding: Binding, bucket: int, values: Sequence[Any]) -> Run:
        """The entry of a bucket; at the first call in it, the quickest of those that may be."""
        row = binding.row
        ready = row.entries[bucket]
        if ready:
            return ready
        try:
            with without_dispatch_modes(), undisturbed(), claimed(row.lock, row.entries, bucket) as found:
                entry: Entry = found or self._cells.fill(binding, bucket, values, self.state is State.LIVE)
                return entry
        except ReenteredError:
            return functools.partial(self._by_eager, binding)

    def _by_eager(self, binding: Binding, values: list[Any]) -> Sequence[Any]:
        """What eager does with the inputs of the placed graph; empties the list."""
        given = binding.row.sized.prepared.whole(values, binding.weights)
        values.clear()
        return self.run_eager(given)

    # --- state -------------------------------------------------------------------------------------------------------

    def _take(self, row: Row) -> None:
        """Run the graph of a row from now on."""
        self._whole = row
        sized, captured = row.sized, self._outlook.captured
        if not self._rows:
            self._cells = Cells(self._outlook, row, self._environment)
        self._add(row)
        if sized.prepared.split is not None:
            self._bindings = WeightBindings(sized, row, captured.id, self._environment)

    def _add(self, row: Row) -> None:
        with self._lock:
            if all(known is not row for known in self._rows):
                self._rows = [*self._rows, row]

    def _enter(self, binding: Binding) -> None:
        with self._lock:
            if self.state is not State.RELEASED:
                self._latest = binding

    def _apart(self, results: list[Any], problems: Mapping[int, str]) -> list[Any]:
        """Results of the first call without what they share wrongly; eager runs the graph from now on."""
        problem = "; ".join(f"result {place} {text}" for place, text in problems.items())
        with self._lock:
            self.state, self._latest = State.EAGER, None
        if self._environment.strict:
            raise VerificationError(
                what=f"graph {self._outlook.captured.id}: {problem}, unlike in eager",
                hint="this is a fault of ours or of a backend; report it with MIXBACKEND_DUMP",
            )
        detail = f"eager runs the graph from now on, its results shared memory otherwise: {problem}"
        self._emit("verify_failed", detail)
        return [_copied(value) if place in problems else value for place, value in enumerate(results)]

    def run_eager(self, arguments: list[Any]) -> Sequence[Any]:
        """What eager does with the captured graph; empties the list."""
        values = list(arguments)
        arguments.clear()
        return self._outlook.captured.module.forward(*values)

    def release(self) -> None:
        """Torch has dropped the graph: memory that is held for calls goes, what reports say stays.

        Takes no lock: it may come in the middle of anything.
        """
        self.state, self._latest = State.RELEASED, None
        for row in tuple(self._rows):
            row.release()
        for body in self.bodies:
            body.release()

    def drop_abandoned(self) -> None:
        """Let go of what was made of weights that nothing else holds any more; takes no lock."""
        bindings, latest = self._bindings, self._latest
        dropped = [] if bindings is None else bindings.drop_abandoned()
        if latest is not None and any(latest.row is row for row in dropped):
            self._latest = None

    # --- reports -----------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Name of the captured graph."""
        return self._outlook.captured.id

    @property
    def rows(self) -> tuple[Row, ...]:
        """What was placed for it: one row for each set of constants."""
        return tuple(self._rows)

    def records(self, *, advice: bool = False, all_weights: bool = True) -> list[GraphRecord]:
        """For the report: itself and its bodies; see ``Row.record``.

        Args:
            advice: also say which refusals cost most.
            all_weights: a record for each set of constants, not for the first alone.
        """
        rows = self._rows if all_weights else self._rows[:1]
        own = [row.record(advice=advice) for row in rows]
        records = [replace(record, identity=self._identity_of(record)) for record in own]
        inside = (body.records(advice=advice, all_weights=False) for body in self.bodies)
        return [*records, *(record for found in inside for record in found)]

    @property
    def estimated_s(self) -> float | None:
        """Seconds of a call as it is placed at the sizes it was captured at; ``None`` where that is not known."""
        return self._rows[0].home.plan.estimated_s if self._rows else None

    def _identity_of(self, record: GraphRecord) -> IdentityRecord | None:
        """Of the captured graph; rows of further weights have none of their own."""
        return self._outlook.identity if record.graph.id == self.id else None

    @property
    def settled(self) -> bool:
        """Whether its calls try other programs no more."""
        if self.state in (State.RELEASED, State.EAGER):
            return True
        entries = (entry.settled for row in self._rows for entry in row.built)
        return all(entries) and all(body.settled for body in self.bodies)

    def stop_trying(self) -> None:
        """Its calls, and those of its bodies, try no other programs from now on."""
        for entry in self._entries():
            entry.stop_trying()

    def time_regions(self) -> None:
        """Time the next calls of every region, for ``records``."""
        for entry in self._entries():
            entry.time_regions()

    def _entries(self) -> Iterator[Entry]:
        """What is built of it, and of its bodies."""
        for row in self._rows:
            yield from row.built
        for body in self.bodies:
            yield from body._entries()

    def _emit(self, kind: Any, detail: str) -> None:
        self._environment.events.append(Event(kind, self.id, "", "", detail))


def run_by_eager(captured: Captured, environment: Environment) -> Executable:
    """A graph that cannot be built."""
    executable = Executable(Outlook(captured, None, None), None, environment)
    executable.state = State.EAGER
    return executable


def _copied(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone(memory_format=torch.preserve_format)
