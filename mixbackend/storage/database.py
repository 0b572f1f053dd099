"""The database: what was learned on this machine.

Place: written by calibration, tuning, verification and repair; read before anything of the kind is done again.
Form: one SQLite file in WAL mode, shared by threads and processes.
Invariants: no method raises over the state of the file; a damaged, foreign or newer file is set aside and a new one
begun. Facts about a backend hold for one fingerprint only: a new driver, library or flag starts afresh. What a remote
folder adds is asked for only where the file has nothing, and never waited for when it is written.
Non-goals: artifacts (see ``artifacts``); what is kept and what is cleaned up (see ``eviction``).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mixbackend.storage.events import Report, StorageEvent, log_event
from mixbackend.storage.folder import behind, private_folder
from mixbackend.storage.remote import Remote
from mixbackend.storage.shared import SharedRows
from mixbackend.storage.sqlite import SqliteFile, copy_database
from mixbackend.storage.tables import DECISIONS, LATER, TABLES, Row, TableName, read_object

_VERSION = 3
FILE = f"mixbackend-v{_VERSION}.sqlite"


class Database:
    """See the module's docstring.

    Args:
        path: of the file; ``None`` keeps everything in memory, for this process alone.
        report: told when a file is set aside, or cannot be read or written.
        clock: seconds since the epoch.
        shared: what a fleet knows.
        only_reads: whether nothing is written, so that no other process waits for this one.
    """

    def __init__(
        self,
        path: Path | None,
        report: Report = log_event,
        clock: Callable[[], float] = time.time,
        shared: SharedRows | None = None,
        only_reads: bool = False,
    ) -> None:
        self._clock = clock
        self._report = report
        self._shared = shared
        definitions = {name: table.definition for name, table in TABLES.items()}
        self._file = SqliteFile(path, definitions, _VERSION, report, clock, only_reads, LATER)

    @classmethod
    def open(
        cls,
        dir: str | os.PathLike[str] | None = None,
        *,
        remote: str | None = None,
        report: Report = log_event,
        only_reads: bool = False,
    ) -> Database:
        """The database in a cache folder, with what a fleet shares behind it; the folder alone where it is only read.

        Raises:
            StorageError: the configured folder cannot be trusted, or the remote's kind is unknown.
        """
        shared = None if remote is None or only_reads else SharedRows(Remote(remote, report), report)
        folder = private_folder(dir, report)
        read_only = behind(folder)
        if read_only is not None:
            copy_database(read_only / FILE, folder / FILE, report)
        return cls(folder / FILE, report, shared=shared, only_reads=only_reads)

    def close(self) -> None:
        """Close the connection; a later call opens a new one."""
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

    def rates_of(self, kind: str) -> tuple[dict[str, Any], ...]:
        """All values of a kind."""
        rows = self._file.read("SELECT value FROM rates WHERE kind=? ORDER BY subject", (kind,))
        return tuple(value for value in (_object([row]) for row in rows) if value is not None)

    def rates_stamp(self) -> str:
        """Changes whenever rates are written."""
        return str(self._file.read("SELECT count(*), max(measured_at), total(length(value)) FROM rates"))

    # --- plans -------------------------------------------------------------------------------------------------------

    def plan(self, subject: str) -> dict[str, Any] | None:
        """What was planned by estimates of a graph."""
        return _object(self._file.read("SELECT value FROM plans WHERE subject=?", (subject,)))

    def set_plan(self, subject: str, value: Mapping[str, Any], *, device: str, fingerprints: Mapping[str, str]) -> None:
        """Keep what was planned; it replaces an earlier row.

        Args:
            subject: what the graph and all that its plan depends on are the same by.
            value: the plan.
            device: that it is for, with the product.
            fingerprints: of the backends that had part, by name; without them all, the row is out of date.
        """
        row = (subject, device, json.dumps(dict(fingerprints), sort_keys=True), json.dumps(value), self._clock())
        self._file.write("INSERT OR REPLACE INTO plans VALUES (?,?,?,?,?)", row)

    # --- decisions ---------------------------------------------------------------------------------------------------

    def has_decisions(self) -> bool:
        """Whether anything was ever tuned, here or perhaps elsewhere in the fleet."""
        return self._shared is not None or bool(self._file.read("SELECT 1 FROM decisions LIMIT 1"))

    def decision(self, subject: str) -> dict[str, Any] | None:
        """What tuning decided about a graph."""
        found = _object(self._file.read("SELECT value FROM decisions WHERE subject=?", (subject,)))
        if found is not None or self._shared is None:
            return found
        row = self._shared.decision(subject)
        if row is None:
            return None
        self.take("decisions", row)
        return read_object(row["value"])

    def set_decision(
        self,
        subject: str,
        value: Mapping[str, Any],
        *,
        device: str = "",
        fingerprints: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Keep a decision; it replaces an earlier one.

        Args:
            subject: what was decided about; it holds everything that the decision depends on.
            value: of the decision.
            device: that was measured on. A decision without one is not shared with other machines.
            fingerprints: of the backends that took part, by name.
        """
        row: Row = {
            "subject": subject,
            "device": device,
            "fingerprints": json.dumps(dict(fingerprints), sort_keys=True),
            "value": json.dumps(value),
            "decided_at": self._clock(),
        }
        self._file.write("INSERT OR REPLACE INTO decisions VALUES (?,?,?,?,?)", [row[name] for name in DECISIONS.names])
        if self._shared is not None and device:
            self._shared.keep_decision(row)

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

    # --- verification ------------------------------------------------------------------------------------------------

    def confirmations(self, region: str, backend: str, fingerprint: str, sizes: str = "") -> int:
        """How many processes found a region's result right, at sizes of this kind."""
        rows = self._file.read(
            "SELECT count(*) FROM verified WHERE region=? AND backend=? AND fingerprint=? "
            "AND (shape_class=? OR substr(shape_class, 1, ?)=?)",
            (region, backend, fingerprint, sizes, len(sizes) + 1, f"{sizes}@"),
        )
        return int(rows[0][0]) if rows else 0

    def confirm(self, region: str, backend: str, fingerprint: str, sizes: str = "", process: str = "") -> None:
        """Remember that a process found a region's result right."""
        kind = f"{sizes}@{process}" if process else sizes
        self._file.write(
            "INSERT OR REPLACE INTO verified VALUES (?,?,?,?,?)", (region, backend, fingerprint, kind, self._clock())
        )

    # --- rows of any table -------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path | None:
        """Of the file, ``None`` for one in memory."""
        return self._file.path

    def used_bytes(self) -> int:
        """Size of what the file holds."""
        return self._file.used_bytes()

    def shrink(self) -> None:
        """Give room that is no longer used back to the file system."""
        self._file.shrink()

    def set_aside(self) -> list[Path]:
        """Files that were damaged or foreign, oldest first."""
        return self._file.set_aside()

    def rows(self, name: TableName) -> list[Row]:
        """All rows of a table, oldest first."""
        table = TABLES[name]
        found = self._file.read(f"SELECT {', '.join(table.names)} FROM {name} ORDER BY {table.time}")
        return [dict(zip(table.names, row, strict=True)) for row in found]

    def take(self, name: TableName, row: Row) -> bool:
        """Keep a row that was made elsewhere, unless what is here is as new; whether it was kept.

        Args:
            name: of the table.
            row: one that ``Table.problem_of`` finds nothing wrong with.
        """
        table = TABLES[name]
        changes = ", ".join(f"{column}=excluded.{column}" for column in table.names if column not in table.key)
        # A clock that is ahead must not make a row newer than everything that will be measured here.
        values = {**row, table.time: min(row[table.time], self._clock())}
        statement = (
            f"INSERT INTO {name} VALUES ({', '.join('?' * len(table.names))}) ON CONFLICT ({', '.join(table.key)}) "
            f"DO UPDATE SET {changes} WHERE excluded.{table.time} > {name}.{table.time}"
        )
        return self._file.write(statement, [values[column] for column in table.names]) > 0

    def remove(self, name: TableName, row: Row) -> bool:
        """Remove a row, unless it was written anew since; whether it is gone."""
        table = TABLES[name]
        columns = (*table.key, table.time)
        condition = " AND ".join(f"{column}=?" for column in columns)
        return self._file.write(f"DELETE FROM {name} WHERE {condition}", [row[column] for column in columns]) > 0


def _object(rows: list[tuple[Any, ...]]) -> dict[str, Any] | None:
    """The JSON object of the one row, if there is one."""
    return read_object(rows[0][0]) if rows and isinstance(rows[0][0], str) else None
