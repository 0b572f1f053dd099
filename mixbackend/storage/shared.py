"""Rows of the database that a fleet shares: decisions and measurements, behind the local file.

Place: between ``database`` and ``remote``. Input: rows, and questions about them. Output: rows that were checked field
by field. A decision is an entry of its own; measurements of one backend, fingerprint, device and number of threads lie
in one entry together, since planning asks for very many of them.
Invariants: a question is asked once per process, whatever the answer; writing is not waited for, and what others wrote
in the meantime is kept unless ours is newer.
Non-goals: rates (they differ between machines of one product, and take seconds to measure); quarantines and
verifications (a backend may fail on one machine for that machine's reasons).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence

from mixbackend.backends.common import forks
from mixbackend.storage.events import Report, StorageEvent
from mixbackend.storage.remote import Remote
from mixbackend.storage.tables import DECISIONS, MEASUREMENTS, Row, Table

Place = tuple[str, str, str, int]
"""Backend, fingerprint, device, threads."""

LONGEST_READ_S = 3.0
"""So long planning waits for rows of the fleet."""
_MOST_ROWS = 5000
"""In one entry of measurements; the newest are kept."""


class SharedRows:
    """See the module's docstring.

    Args:
        remote: where they lie.
        report: told of rows that cannot be used.
    """

    def __init__(self, remote: Remote, report: Report) -> None:
        self.remote = remote
        self._report = report
        self._lock = forks.lock()
        self._asked: set[object] = set()

    def decision(self, subject: str) -> Row | None:
        """What another machine decided; ``None`` if nothing, or when that was the answer before."""
        if not self._first_time(subject):
            return None
        rows = self._read(DECISIONS, subject)
        return next((row for row in rows if row["subject"] == subject), None)

    def keep_decision(self, row: Row) -> None:
        """Tell the others."""
        self.remote.put_later(_path(DECISIONS, row["subject"]), _key(DECISIONS, row["subject"]), _text([row]))

    def measurements(self, place: Place) -> list[Row]:
        """What others measured in this place; nothing when that was asked before."""
        return self._measured(place) if self._first_time(place) else []

    def keep_measurements(self, place: Place, ours: Callable[[], Iterable[Row]]) -> None:
        """Tell the others what was measured here.

        Args:
            place: of all rows.
            ours: gives the rows; called when they are written.
        """
        name = _name(place)

        def merge() -> None:
            theirs = {MEASUREMENTS.place(row): row for row in self._measured(place)}
            merged = dict(theirs)
            for row in ours():
                known = merged.get(MEASUREMENTS.place(row))
                if known is None or known["measured_at"] < row["measured_at"]:
                    merged[MEASUREMENTS.place(row)] = row
            newest = sorted(merged.values(), key=lambda row: -row["measured_at"])[:_MOST_ROWS]
            if merged != theirs:
                self.remote.put(_path(MEASUREMENTS, name), _key(MEASUREMENTS, name), _text(newest))

        self.remote.background.add(_path(MEASUREMENTS, name), merge)

    def _first_time(self, question: object) -> bool:
        with self._lock:
            first = question not in self._asked
            self._asked.add(question)
            return first

    def _measured(self, place: Place) -> list[Row]:
        names = ("backend", "fingerprint", "device", "threads")
        rows = self._read(MEASUREMENTS, _name(place))
        return [row for row in rows if tuple(row[name] for name in names) == place]

    def _read(self, table: Table, name: str) -> Sequence[Row]:
        found = self.remote.get(_path(table, name), _key(table, name), LONGEST_READ_S)
        if found is None:
            return ()
        try:
            rows = json.loads(found.content)
        except (ValueError, RecursionError) as error:
            self._report(StorageEvent("corrupt", f"remote {table.name} {name}: {error}"))
            return ()
        rows = rows if isinstance(rows, list) else [rows]
        good = [row for row in rows if not table.problem_of(row)]
        if len(good) < len(rows):
            problem = next(filter(None, map(table.problem_of, rows)))
            self._report(StorageEvent("corrupt", f"remote {table.name} {name}: a row {problem}"))
        return good


def _text(rows: Sequence[Row]) -> bytes:
    return json.dumps(rows).encode()


def _name(place: Place) -> str:
    return hashlib.sha256(json.dumps(place).encode()).hexdigest()


def _key(table: Table, name: str) -> str:
    return f"{table.name} {name}"


def _path(table: Table, name: str) -> str:
    hashed = hashlib.sha256(_key(table, name).encode()).hexdigest()
    return f"{table.name}/{hashed[:2]}/{hashed}.rows"
