"""The tables of the database, and when a row is one.

Place: below ``database`` (which makes the tables), ``shared`` and ``archive`` (which take rows from elsewhere).
Invariants: ``problem_of`` looks at every field, so that a row from a file or a remote folder is as good as one that was
written here. Columns that hold JSON hold an object.
Non-goals: what the values mean; their readers check that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Row = dict[str, Any]
"""A row by column."""

TableName = Literal["rates", "decisions", "plans", "quarantine", "verified"]

_KINDS: dict[str, tuple[str, type]] = {
    "text": ("TEXT", str),
    "object": ("TEXT", str),
    "count": ("INTEGER", int),
    "number": ("REAL", float),
}
_LONGEST_TEXT = 1 << 24


@dataclass(frozen=True, slots=True)
class Table:
    """One table.

    Attributes:
        name: in the file.
        columns: names and kinds, in order; the kinds are those of ``_KINDS``.
        key: columns of the primary key.
        time: the column that says when a row was written, in seconds since the epoch.
    """

    name: TableName
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    time: str

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns."""
        return tuple(name for name, _ in self.columns)

    @property
    def definition(self) -> str:
        """What stands between the parentheses of ``CREATE TABLE``."""
        columns = [f"{name} {_KINDS[kind][0]}" for name, kind in self.columns]
        return ", ".join([*columns, f"PRIMARY KEY ({', '.join(self.key)})"])

    def place(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Values of the primary key."""
        return tuple(row[name] for name in self.key)

    def problem_of(self, row: object) -> str:
        """Why something is no row of this table; ``""`` if it is one."""
        if not isinstance(row, dict):
            return f"is a {type(row).__name__}, not an object"
        if set(row) != set(self.names):
            return f"has the fields {sorted(map(str, row))} instead of {sorted(self.names)}"
        problems = ((name, _problem(kind, row[name])) for name, kind in self.columns)
        return "; ".join(f"{name} {problem}" for name, problem in problems if problem)


def _problem(kind: str, value: object) -> str:
    if not isinstance(value, _KINDS[kind][1]) or isinstance(value, bool):
        return f"is a {type(value).__name__}"
    if isinstance(value, (int, float)):
        return "" if math.isfinite(value) and value >= 0 else f"is {value}"
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return f"has {len(value)} characters"
    return "" if kind == "text" or read_object(str(value)) is not None else "is no JSON object"


def read_object(text: str) -> dict[str, Any] | None:
    """The JSON object of a text; ``None`` if it holds none: such a row counts as missing and is measured again."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


RATES = Table(
    "rates",
    (("kind", "text"), ("subject", "text"), ("value", "object"), ("measured_at", "number")),
    ("kind", "subject"),
    "measured_at",
)
DECISIONS = Table(
    "decisions",
    (
        *(("subject", "text"), ("device", "text"), ("fingerprints", "object")),
        *(("value", "object"), ("decided_at", "number")),
    ),
    ("subject",),
    "decided_at",
)
PLANS = Table(
    "plans",
    (
        *(("subject", "text"), ("device", "text"), ("fingerprints", "object")),
        *(("value", "object"), ("planned_at", "number")),
    ),
    ("subject",),
    "planned_at",
)
QUARANTINE = Table(
    "quarantine",
    (("region", "text"), ("backend", "text"), ("fingerprint", "text"), ("reason", "text"), ("since", "number")),
    ("region", "backend"),
    "since",
)
VERIFIED = Table(
    "verified",
    (
        *(("region", "text"), ("backend", "text"), ("fingerprint", "text"), ("shape_class", "text")),
        ("verified_at", "number"),
    ),
    ("region", "backend", "fingerprint", "shape_class"),
    "verified_at",
)
TABLES: dict[str, Table] = {table.name: table for table in (RATES, DECISIONS, PLANS, QUARANTINE, VERIFIED)}
ASKED = "asked"
"""In the value of a plan or a decision: what its subject is a digest of, so that `mixbackend cache why` can tell."""
LATER = frozenset({"plans"})
"""Tables that files of this version may lack: they were made before there were any."""
