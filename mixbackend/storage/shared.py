"""Rows of the database that a fleet shares: decisions, behind the local file.

Place: between ``database`` and ``remote``. Input: rows, and questions about them. Output: rows that were checked field
by field. A decision is an entry of its own.
Invariants: a question is asked once per process, whatever the answer; writing is not waited for.
Non-goals: rates (they differ between machines of one product, and take seconds to measure); quarantines and
verifications (a backend may fail on one machine for that machine's reasons).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from mixbackend.backends.common import forks
from mixbackend.storage.events import Report, StorageEvent
from mixbackend.storage.remote import Remote
from mixbackend.storage.tables import DECISIONS, Row, Table

LONGEST_READ_S = 3.0
"""So long planning waits for rows of the fleet."""


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

    def _first_time(self, question: object) -> bool:
        with self._lock:
            first = question not in self._asked
            self._asked.add(question)
            return first

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


def _key(table: Table, name: str) -> str:
    return f"{table.name} {name}"


def _path(table: Table, name: str) -> str:
    hashed = hashlib.sha256(_key(table, name).encode()).hexdigest()
    return f"{table.name}/{hashed[:2]}/{hashed}.rows"
