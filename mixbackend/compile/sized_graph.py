"""A sized graph: one prepared graph with a plan for each range of sizes, and what was decided about them.

Place: made by ``compile.propose``; asked by ``compile.executable`` for the program of a range of sizes.
Input: a prepared graph, its plan at the sizes it was captured at, its ladder. Output: ``Proposal`` per bucket;
``Row``: the entries of all buckets for one set of constants.
Invariants: no guard is added; one plan serves all sizes where there is no ladder. A decision is made once for a bucket,
whatever constants its first call came with.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mixbackend.backends.common import forks
from mixbackend.compile.build import build
from mixbackend.compile.entry import Entry
from mixbackend.compile.making import Making, held
from mixbackend.compile.program import Proposal
from mixbackend.compile.program_entry import ProgramEntry
from mixbackend.contracts import OpGraph
from mixbackend.execute.bindings import BackgroundRebind
from mixbackend.execute.weights.owned import OwnedWeights
from mixbackend.execute.weights.watch import WeightWatch
from mixbackend.graph.prepared import Prepared
from mixbackend.partitioner.plan_canonical import canonical_plan
from mixbackend.plan.choice import DEFAULT, Choice
from mixbackend.plan.environment import Environment
from mixbackend.plan.layout_choice import LaidOutGraph, choose_layout, named_layout
from mixbackend.plan.regime_search import Ladder, Regime
from mixbackend.plan.size_buckets import size_reader
from mixbackend.reporting import GraphRecord
from mixbackend.reporting.records import RegimeRecord
from mixbackend.select.decision import Decision


@dataclass(frozen=True)
class SizedGraph:
    """See the module's docstring.

    Attributes:
        prepared: the graph.
        home: how it is placed for the sizes that it was captured at.
        ladder: its buckets; ``None`` where one plan serves all sizes.
    """

    prepared: Prepared
    home: Proposal
    ladder: Ladder | None

    @property
    def buckets(self) -> int:
        """How many there are."""
        return 1 if self.ladder is None else len(self.ladder.regimes)

    @property
    def home_bucket(self) -> int:
        """The one that the graph was captured in."""
        return 0 if self.ladder is None else self.ladder.home

    def regime(self, bucket: int) -> Regime | None:
        """The range of a bucket; ``None`` for all sizes."""
        return None if self.ladder is None else self.ladder.regimes[bucket]

    def reader(self) -> Callable[[Sequence[Any]], int] | None:
        """Reads the bucket off a call's inputs; ``None`` if there is one alone."""
        if self.ladder is None or self.buckets == 1:
            return None
        bounds = [regime.last for regime in self.ladder.regimes if regime.last is not None]
        read = self.size_of_call()
        assert read is not None, "there is a ladder"
        return lambda values: bisect_left(bounds, read(values))

    def size_of_call(self) -> Callable[[Sequence[Any]], int] | None:
        """Reads the quantity that buckets are ranges of off a call's inputs; ``None`` if all calls have equal sizes."""
        if self.ladder is None:
            return None
        layout = self.home.layout
        return size_reader(layout.module, layout.graph, self.ladder.quantity.symbols)

    def home_as(self, graph_id: str) -> Proposal:
        """The home proposal under another name."""
        return self.renamed(self.home, graph_id)

    def renamed(self, proposal: Proposal, graph_id: str) -> Proposal:
        """A proposal under another name."""
        return replace(proposal, layout=_named(proposal.layout, graph_id))

    def choice_at_home(self, entry: Entry) -> Choice:
        """The plan that runs at home, as a candidate for other buckets."""
        return Choice(layout=named_layout(entry.layout.record), plan=canonical_plan(entry.plan, entry.graph))

    def proposal(self, bucket: int, graph_id: str, decision: Decision, environment: Environment) -> Proposal:
        """How a bucket other than home is placed, as was decided for it."""
        regime = self.regime(bucket)
        assert regime is not None, "there is one plan for all sizes"
        home = self.home.layout
        if decision.choice == DEFAULT and same_nodes(regime.graph, home.graph):
            # As the search planned it.
            known = LaidOutGraph(home.module, regime.graph, regime.plan, home.record)
            return Proposal(_named(known, graph_id), decision)
        return self.proposal_for(decision, graph_id, environment, regime)

    def proposal_for(
        self, decision: Decision, graph_id: str, environment: Environment, regime: Regime | None = None
    ) -> Proposal:
        """How the graph is placed as a decision says, at the sizes of a range, or those it was captured at."""
        prepared, hints = self.prepared, None if regime is None else regime.hints
        arguments = prepared.module, prepared.phase, graph_id, prepared.roles, environment.planner, decision.choice
        return Proposal(choose_layout(*arguments, hints=hints), decision)


@dataclass(eq=False)
class Row:
    """The entries of one set of constants, one per bucket.

    Attributes:
        sized: what they run.
        graph_id: name of the home entry in reports.
        environment: what builds them.
        entries: by bucket; ``None`` until a size of the bucket comes, false until it is known what runs there.
        constants: what they are bound to.
        watch: of the weights that the constants were made of.
        first: the entry for the sizes that the graph was captured at, until a call comes with such.
        released: whether it is not to be called again.
        lock: of writes to ``entries`` and ``constants``; never held while anything is built or bound.
    """

    sized: SizedGraph
    graph_id: str
    environment: Environment
    entries: list[Entry | Making[Entry] | None]
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    watch: WeightWatch | OwnedWeights | None = None
    first: Entry | None = None
    released: bool = False
    lock: threading.Lock = field(default_factory=forks.lock, repr=False)

    def __post_init__(self) -> None:
        self.bucket_of = self.sized.reader()
        """Reads the bucket off a call's inputs; ``None`` if there is one alone."""

    @classmethod
    def begun(cls, sized: SizedGraph, graph_id: str, environment: Environment) -> Row:
        """A row with its home entry, which is bound to nothing yet.

        Raises:
            MixbackendError: no placement exists, or failures are to be raised.
        """
        row = cls(sized, graph_id, environment, [None] * sized.buckets)
        row.first = row.build(sized.home_as(graph_id))
        return row

    @property
    def home(self) -> Entry:
        """The entry for the sizes that the graph was captured at."""
        entry = self.held(self.sized.home_bucket) or self.first
        assert entry is not None, "it is built first"
        return entry

    @property
    def built(self) -> list[Entry]:
        """Those that exist."""
        found = (self.first, *map(held, tuple(self.entries)))
        return list({id(entry): entry for entry in found if entry is not None}.values())

    def held(self, bucket: int) -> Entry | None:
        """What runs a bucket, as far as it is built."""
        return held(self.entries[bucket])

    @property
    def rechecked_s(self) -> float:
        """Seconds that holding code for changed constants against eager has taken."""
        return sum(entry.program.rechecked_s for entry in self.built)

    def bind(self, constants: Mapping[str, torch.Tensor], rebind: BackgroundRebind | None = None) -> int:
        """Bind what is built, and what will be, to constants; see ``Entry.bind``."""
        with self.lock:
            self.constants, self.released, built = constants, False, self.built
        return sum(entry.bind(constants, rebind) for entry in built)

    def enter(self, bucket: int, entry: Entry, in_place_of: Entry | None = None) -> None:
        """Put an entry into its cell, bound to the constants of now: they may be others than when it was built.

        Args:
            bucket: where.
            entry: what runs there from now on.
            in_place_of: only where this one has the cell.
        """
        while True:
            with self.lock:
                constants = self.constants
                # What is there already is bound by those that bind the row.
                there = any(entry.champion is item.champion for item in self.built)
                if there or self.released or entry.program.constants is constants:
                    self._put(bucket, entry, in_place_of)
                    break
            entry.bind(constants)
        if self.released:
            entry.release()

    def _put(self, bucket: int, entry: Entry, in_place_of: Entry | None) -> None:
        cell = self.entries[bucket]
        if in_place_of is not None and held(cell) is not in_place_of:
            return
        if in_place_of is not None and isinstance(cell, Making):
            cell.before = entry
            return
        self.entries[bucket] = entry
        if bucket == self.sized.home_bucket:
            self.first = None

    def release(self) -> None:
        """It will not be called again; see ``Entry.release``. Takes no lock."""
        self.constants, self.released, self.watch = {}, True, None
        for entry in self.built:
            entry.release()

    def id_of(self, bucket: int) -> str:
        """Name of a bucket's graph in reports."""
        regime = self.sized.regime(bucket)
        if regime is None or bucket == self.sized.home_bucket:
            return self.graph_id
        return f"{self.graph_id}@{regime.first}"

    def build(self, proposal: Proposal, on_trial: bool = False) -> ProgramEntry:
        """An entry of this row, bound to its constants; it is not entered yet."""
        return ProgramEntry(build(proposal, self.environment, self.constants), self.environment, on_trial)

    def settle_watch(self) -> None:
        """Code was bound, or let go of: what shares the weights' memory now is ours."""
        if self.watch is not None:
            self.watch.settle()

    def _own(self, bucket: int) -> Entry | None:
        """What was built for a bucket; the entry of other sizes may run it instead."""
        if bucket == self.sized.home_bucket:
            return self.home
        entry = self.held(bucket)
        return None if entry is self.home else entry

    def record(self, *, advice: bool = False) -> GraphRecord:
        """What the report says: the plan of the home bucket, and all buckets where there are several."""
        record, ladder = self.home.record(advice=advice), self.sized.ladder
        if ladder is None or self.sized.buckets == 1:
            return record
        rows = tuple(
            RegimeRecord(
                str(ladder.quantity),
                regime.first,
                regime.last,
                regime.size,
                entry is not None,
                GraphRecord(regime.graph, regime.plan) if entry is None else entry.record(),
            )
            for regime, entry in zip(ladder.regimes, map(self._own, range(len(self.entries))), strict=True)
        )
        return replace(record, regimes=rows)


def _named(layout: LaidOutGraph, graph_id: str) -> LaidOutGraph:
    """The same under another name."""
    if layout.graph.id == graph_id:
        return layout
    plan = None if layout.plan is None else replace(layout.plan, graph_id=graph_id)
    return replace(layout, graph=replace(layout.graph, id=graph_id), plan=plan)


def same_nodes(graph: OpGraph, other: OpGraph) -> bool:
    """Whether the graphs are the same but for sizes: not one of them in another layout of images."""
    return [(node.name, node.op) for node in graph.nodes] == [(node.name, node.op) for node in other.nodes]
