"""What a mixture compiled: its placed graphs, their names and identities, for its report.

Place: held by ``compile.mixture``, written by ``compile.compiling``.
Invariants: safe for threads; a graph is here from when it is placed until it is known that it will not run.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mixbackend.compile.placed import PlacedGraph
from mixbackend.compile.regimes import RegimeGraph
from mixbackend.contracts import Phase
from mixbackend.reporting.records import GraphRecord, IdentityRecord

Placed = PlacedGraph | RegimeGraph


class CompiledGraphs:
    """See the module's docstring; iterates over the graphs in the order in which they were placed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._placed: list[Placed] = []
        self._identities: dict[str, IdentityRecord] = {}
        self._counters: dict[Phase, itertools.count[int]] = {}

    def __iter__(self) -> Iterator[Placed]:
        with self._lock:
            return iter(tuple(self._placed))

    def __len__(self) -> int:
        return len(self._placed)

    def new_id(self, phase: Phase) -> str:
        """A name for one more graph."""
        with self._lock:
            return f"{phase}-{next(self._counters.setdefault(phase, itertools.count()))}"

    def keep(self, graph: Placed) -> None:
        """One more graph may run."""
        with self._lock:
            self._placed.append(graph)

    def forget(self, graphs: Sequence[Placed]) -> None:
        """These will not run."""
        with self._lock:
            self._placed = [graph for graph in self._placed if not any(graph is other for other in graphs)]

    def let_go(self, graph_id: str) -> None:
        """Torch has dropped a captured graph: memory that its placed graphs hold for calls goes, they stay for reports.

        Takes no lock: it may come in the middle of anything.
        """
        for graph in tuple(self._placed):
            if _captured(graph) == graph_id:
                graph.let_go()

    def identify(self, graph_id: str, identity: IdentityRecord) -> None:
        """Say what makes the graph of a name the same elsewhere."""
        with self._lock:
            self._identities[graph_id] = identity

    def records(self, *, advice: bool) -> tuple[GraphRecord, ...]:
        """For the report; see ``PlacedGraph.record``."""
        with self._lock:
            records = [graph.record(advice=advice) for graph in self._placed]
            return tuple(replace(record, identity=self._identities.get(record.graph.id)) for record in records)

    def clear(self) -> None:
        """Forget everything, names included."""
        with self._lock:
            self._placed.clear()
            self._identities.clear()
            self._counters.clear()


def _captured(graph: Placed) -> str:
    """Name of the captured graph that a placed one was made for."""
    home = graph.home if isinstance(graph, RegimeGraph) else graph
    return home.graph.id.partition("+")[0].partition("@")[0]
