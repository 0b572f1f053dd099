"""What a mixture compiled: its executables and their names, for its report.

Place: held by ``compile.mixture``.
Invariants: safe for threads; an executable is here from when its graph is compiled until everything is forgotten.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from mixbackend.backends.common import forks
from mixbackend.compile.executable import Executable
from mixbackend.contracts import Phase
from mixbackend.reporting.records import GraphRecord


class CompiledGraphs:
    """See the module's docstring; iterates over the executables in the order in which they were compiled."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._executables: tuple[Executable, ...] = ()
        self._counters: dict[Phase, itertools.count[int]] = {}

    def __iter__(self) -> Iterator[Executable]:
        return iter(self._executables)

    def __len__(self) -> int:
        return len(self._executables)

    def new_id(self, phase: Phase) -> str:
        """A name for one more graph."""
        with self._lock:
            return f"{phase}-{next(self._counters.setdefault(phase, itertools.count()))}"

    def keep(self, executable: Executable) -> None:
        """One more graph was compiled."""
        with self._lock:
            self._executables = (*self._executables, executable)

    def records(self, *, advice: bool) -> tuple[GraphRecord, ...]:
        """For the report; see ``Executable.records``."""
        return tuple(record for item in self._executables for record in item.records(advice=advice))

    def clear(self) -> None:
        """Forget everything, names included."""
        with self._lock:
            self._executables = ()
            self._counters.clear()
