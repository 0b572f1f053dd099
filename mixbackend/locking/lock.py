"""The lock file as planning asks it: what is decided for a graph, and what to do where something differs.

Place: before tuning and placement. Input: a captured graph's identity. Output: a ``Choice`` with plan and layout, so
that nothing is searched or measured; or ``None``: place the graph as usual.
Invariants: nothing is silent: what differs is an error under ``frozen``, an event otherwise. A plan that does not hold
(not legal, or an op on a backend that refuses it) is never run. Every difference is kept, for callers that want them
all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from mixbackend.backends.common import forks
from mixbackend.contracts import Backend, LockError, Phase, RegionTextError
from mixbackend.locking.differences import Difference, LockDifferencesError, compare, made_with, missing
from mixbackend.locking.model import LockedGraph, LockFile, MadeWith
from mixbackend.locking.reading import read_lock
from mixbackend.plan.choice import Choice
from mixbackend.plan.joint_decision import JointDecision
from mixbackend.plan.locked_plans import AskedGraph
from mixbackend.reporting import Event, EventLog


class Lock:
    """See the module's docstring.

    Args:
        path: of the file.
        frozen: whether any difference is an error.
        backends: that may be used.
        events: receives what differs, unless that is an error.
    """

    def __init__(self, path: str, frozen: bool, backends: Sequence[Backend], events: EventLog) -> None:
        self.path = path
        self.frozen = frozen
        self._backends = backends
        self._events = events
        self._lock = forks.reentrant_lock()
        self._differences: dict[str, list[Difference]] = {}
        self._entries: dict[str, LockedGraph] = {}

    @property
    def differences(self) -> tuple[Difference, ...]:
        """All that was found so far."""
        with self._lock:
            return tuple(item for found in self._differences.values() for item in found)

    @property
    def used(self) -> frozenset[str]:
        """Keys of the entries that a graph of this process has."""
        with self._lock:
            return frozenset(entry.key for entry in self._entries.values())

    @cached_property
    def file(self) -> LockFile:
        """What is in the file.

        Raises:
            LockError: it cannot be read.
        """
        return read_lock(self.path)

    @cached_property
    def here(self) -> MadeWith:
        """What plans would be made with in this process."""
        return made_with(self._backends)

    def joint_decision(self, key: str) -> JointDecision | None:
        """What the file says about a joint graph; ``None`` if nothing.

        What is decided anew may be decided as before: so this is no difference by itself. If it is another decision,
        the graphs that come of it are not in the file.
        """
        try:
            entry = self.file.joint(key)
        except LockError:
            return None  # emitted when the first graph asks
        return JointDecision(entry.layout, entry.saved, entry.recomputed) if entry is not None else None

    def choice(self, graph_id: str, phase: Phase, graph: AskedGraph) -> Choice | None:
        """What the file says about a graph.

        Args:
            graph_id, phase: of the graph.
            graph: asked for its identity, and for its operators only if it is not in the file.

        Raises:
            LockError: under ``frozen``, where there is nothing that could be used. What else differs is raised by
                ``settle``, together with what speaks against the plan.
        """
        try:
            identity = graph.identity
            file = self.file
        except RegionTextError as error:
            self._absent([Difference(graph_id, f"the graph has no text, so that no file can name it: {error.what}")])
            return None
        except LockError as error:
            if self.frozen:
                raise
            self._emit(graph_id, f"placed without the lock file: {error.what}")
            return None
        entry = file.find(identity.key)
        if entry is None:
            self._absent(missing(graph_id, phase, identity, graph.ops, file, set(self.used)))
            return None
        with self._lock:
            self._entries[graph_id] = entry
            self._differences[graph_id] = compare(graph_id, entry, file.made_with, identity, self.here)
        return entry.choice()

    def settle(self, graph_id: str, problems: Sequence[str]) -> None:
        """Say what came of a decision: what differs, and what speaks against the plan.

        Raises:
            LockError: under ``frozen``, if there is anything; with all of it.
        """
        base = graph_id.partition("+")[0]
        with self._lock:
            found = self._differences.setdefault(base, [])
            found += [item for problem in problems if (item := Difference(base, problem)) not in found]
            found = list(found)
            entry = self._entries.get(base)
        if not found:
            return
        if self.frozen:
            raise LockDifferencesError(self.path, found, [entry.made_by] if entry is not None else ())
        instead = "placed as usual" if problems else "placed as locked all the same"
        self._emit(base, f"{instead}: " + "; ".join(map(str, found)))

    def check(self, made_by: str) -> None:
        """Raise if anything differed for any graph so far, or if entries were not used.

        Args:
            made_by: the command that runs: of the entries that it made, all must have been used.

        Raises:
            LockError: with all of it.
        """
        found = list(self.differences)
        for entry in self.file.graphs:
            if entry.made_by == made_by and entry.key not in self.used:
                found.append(Difference(entry.graph, f"this {entry.phase} graph of the file does not come up here"))
        if found:
            raise LockDifferencesError(self.path, found, [made_by])

    def _absent(self, found: list[Difference]) -> None:
        graph_id = found[0].graph
        with self._lock:
            self._differences[graph_id] = found
        if self.frozen:
            raise LockDifferencesError(self.path, found, [entry.made_by for entry in self.file.graphs])
        self._emit(graph_id, "placed as usual: " + "; ".join(map(str, found)))

    def _emit(self, graph_id: str, detail: str) -> None:
        self._events.append(Event("lock", graph_id, "", "", f"{self.path}: {detail}"))
