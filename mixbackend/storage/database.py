"""The measurement database: what was learned on this machine.

Place: written by calibration, tuning, verification and repair; read before anything of the kind is done again.
Form: one SQLite file in WAL mode, shared by threads and processes.
Invariants: no method raises over the state of the file; a damaged, foreign or newer file is set aside and a new one
begun. Facts about a backend hold for one fingerprint only: a new driver, library or flag starts afresh.
Non-goals: artifacts (see ``artifacts``).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixbackend.storage.events import Report, StorageEvent, log_event
from mixbackend.storage.folder import private_folder
from mixbackend.storage.sqlite import SqliteFile

_VERSION = 2
_FILE = f"mixbackend-v{_VERSION}.sqlite"
_TABLES = {
    "measurements": "region TEXT, backend TEXT, fingerprint TEXT, device TEXT, threads INTEGER, median_s REAL, "
    "spread_s REAL, count INTEGER, measured_at REAL, PRIMARY KEY (region, backend, fingerprint, device, threads)",
    "rates": "kind TEXT, subject TEXT, value TEXT, measured_at REAL, PRIMARY KEY (kind, subject)",
    "quarantine": "region TEXT, backend TEXT, fingerprint TEXT, reason TEXT, since REAL, PRIMARY KEY (region, backend)",
    "verified": "region TEXT, backend TEXT, fingerprint TEXT, shape_class TEXT, verified_at REAL, "
    "PRIMARY KEY (region, backend, fingerprint, shape_class)",
    "decisions": "subject TEXT PRIMARY KEY, value TEXT, decided_at REAL",
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """Timing of one region by one backend.

    Attributes:
        median_s: seconds of one run.
        spread_s: distance between the quartiles, in seconds.
        count: number of runs.
        measured_at: seconds since the epoch.
    """

    median_s: float
    spread_s: float
    count: int
    measured_at: float = 0.0


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """A backend that failed on a region.

    Attributes:
        region: key of the region.
        backend, fingerprint: who failed.
        reason: what happened, in words.
        since: seconds since the epoch.
    """

    region: str
    backend: str
    fingerprint: str
    reason: str
    since: float


class Database:
    """See the module's docstring.

    Args:
        path: of the file; ``None`` keeps everything in memory, for this process alone.
        report: told when a file is set aside, or cannot be read or written.
        clock: seconds since the epoch.
    """

    def __init__(self, path: Path | None, report: Report = log_event, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._report = report
        self._file = SqliteFile(path, _TABLES, _VERSION, report, clock)

    @classmethod
    def open(cls, dir: str | os.PathLike[str] | None = None, *, report: Report = log_event) -> Database:
        """The database in a cache folder.

        Raises:
            StorageError: the configured folder cannot be trusted.
        """
        return cls(private_folder(dir, report) / _FILE, report)

    @classmethod
    def in_memory(cls) -> Database:
        """A database that is forgotten when the process ends."""
        return cls(None)

    def close(self) -> None:
        """Close the connection of this thread; a later call opens a new one."""
        self._file.close()

    @contextlib.contextmanager
    def alone(self, purpose: str) -> Iterator[None]:
        """Run while no other process that shares the file does the same; without a lock where there can be none."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._file.exclusive(purpose))
            except OSError as error:
                self._report(StorageEvent("unwritable", f"lock for {purpose}: {error}"))
            yield

    # --- measurements ------------------------------------------------------------------------------------------------

    def measured(self, region: str, backend: str, fingerprint: str, device: str, threads: int) -> Measurement | None:
        """The timing of a region on this device with this many threads."""
        rows = self._file.read(
            "SELECT median_s, spread_s, count, measured_at FROM measurements "
            "WHERE region=? AND backend=? AND fingerprint=? AND device=? AND threads=?",
            (region, backend, fingerprint, device, threads),
        )
        return Measurement(*rows[0]) if rows else None

    def add_measurement(
        self, region: str, backend: str, fingerprint: str, device: str, threads: int, measurement: Measurement
    ) -> None:
        """Keep a timing; it replaces an earlier one."""
        self._file.write(
            "INSERT OR REPLACE INTO measurements VALUES (?,?,?,?,?,?,?,?,?)",
            (
                *(region, backend, fingerprint, device, threads),
                *(measurement.median_s, measurement.spread_s, measurement.count),
                measurement.measured_at or self._clock(),
            ),
        )

    # --- rates -------------------------------------------------------------------------------------------------------

    def rates(self, kind: str, subject: str) -> dict[str, Any] | None:
        """Probed rates of a device (``kind`` ``device``) or of a backend on a device (``backend``)."""
        return _object(self._file.read("SELECT value FROM rates WHERE kind=? AND subject=?", (kind, subject)))

    def set_rates(self, kind: str, subject: str, value: dict[str, Any]) -> None:
        """Keep probed rates."""
        self._file.write(
            "INSERT OR REPLACE INTO rates VALUES (?,?,?,?)",
            (kind, subject, json.dumps(value, sort_keys=True), self._clock()),
        )

    def all_rates(self) -> tuple[tuple[str, str, dict[str, Any]], ...]:
        """Everything that was probed: kind, subject, value."""
        rows = self._file.read("SELECT kind, subject, value FROM rates ORDER BY kind, subject")
        known = ((kind, subject, _object([(value,)])) for kind, subject, value in rows)
        return tuple((kind, subject, value) for kind, subject, value in known if value is not None)

    # --- decisions ---------------------------------------------------------------------------------------------------

    def has_decisions(self) -> bool:
        """Whether anything was ever tuned."""
        return bool(self._file.read("SELECT 1 FROM decisions LIMIT 1"))

    def decision(self, subject: str) -> dict[str, Any] | None:
        """What tuning decided about a graph."""
        return _object(self._file.read("SELECT value FROM decisions WHERE subject=?", (subject,)))

    def set_decision(self, subject: str, value: dict[str, Any]) -> None:
        """Keep a decision; it replaces an earlier one."""
        self._file.write("INSERT OR REPLACE INTO decisions VALUES (?,?,?)", (subject, json.dumps(value), self._clock()))

    def forget_decision(self, subject: str) -> None:
        """Forget a decision, if there is one."""
        self._file.write("DELETE FROM decisions WHERE subject=?", (subject,))

    # --- quarantine --------------------------------------------------------------------------------------------------

    def quarantined(self, region: str, backend: str, fingerprint: str) -> str | None:
        """Why a backend may not have a region; ``None`` if it may, or if its fingerprint has changed since."""
        rows = self._file.read(
            "SELECT reason FROM quarantine WHERE region=? AND backend=? AND fingerprint=?",
            (region, backend, fingerprint),
        )
        return rows[0][0] if rows else None

    def quarantine(self, region: str, backend: str, fingerprint: str, reason: str) -> None:
        """Keep a region from a backend until its fingerprint changes."""
        self._file.write(
            "INSERT OR REPLACE INTO quarantine VALUES (?,?,?,?,?)",
            (region, backend, fingerprint, reason, self._clock()),
        )

    def release(self, region: str | None = None, backend: str | None = None) -> None:
        """Lift quarantines, of one region or backend or all."""
        self._file.write(
            "DELETE FROM quarantine WHERE region=coalesce(?, region) AND backend=coalesce(?, backend)",
            (region, backend),
        )

    def quarantines(self) -> tuple[QuarantineEntry, ...]:
        """All entries, oldest first; those of other fingerprints have expired and wait to be overwritten."""
        rows = self._file.read(
            "SELECT region, backend, fingerprint, reason, since FROM quarantine ORDER BY since, region, backend"
        )
        return tuple(QuarantineEntry(*row) for row in rows)

    # --- verification ------------------------------------------------------------------------------------------------

    def is_verified(self, region: str, backend: str, fingerprint: str, shape_class: str = "") -> bool:
        """Whether a region's result was found right before."""
        rows = self._file.read(
            "SELECT 1 FROM verified WHERE region=? AND backend=? AND fingerprint=? AND shape_class=?",
            (region, backend, fingerprint, shape_class),
        )
        return bool(rows)

    def set_verified(self, region: str, backend: str, fingerprint: str, shape_class: str = "") -> None:
        """Remember that a region's result was right."""
        self._file.write(
            "INSERT OR REPLACE INTO verified VALUES (?,?,?,?,?)",
            (region, backend, fingerprint, shape_class, self._clock()),
        )


def _object(rows: list[tuple[Any, ...]]) -> dict[str, Any] | None:
    """The JSON object of the one row; one that no version of ours wrote counts as missing and is measured again."""
    try:
        value = json.loads(rows[0][0]) if rows else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
