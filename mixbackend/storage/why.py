"""Why a stored entry was not used: its key's fields, held against what a process would ask for.

Place: above store and database; for ``mixbackend cache why``. Input: entries, and fields that are asked for here.
Output: for each entry the fields that differ, those that are the same, and those of which nothing is known here.
Invariants: only looks. Fields are texts by name; those inside others have dotted names (``configuration.weights``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mixbackend.storage.artifacts import ArtifactStore
from mixbackend.storage.database import Database
from mixbackend.storage.entry import MAGIC
from mixbackend.storage.tables import ASKED, read_object

FORM = MAGIC.decode()
_FEW_WORDS = 6
GRAPH_FIELDS = frozenset({"graph", "question", "phase", "region", "weights"})
"""Fields that a process knows only once it has a graph."""


@dataclass(frozen=True)
class Stored:
    """An entry, and what its key is made of.

    Attributes:
        kind: ``artifact``, ``plan`` or ``decision``.
        key: its name.
        fields: by name; those that an older version did not write are missing.
    """

    kind: str
    key: str
    fields: Mapping[str, str]


@dataclass(frozen=True)
class Difference:
    """A field that is another one here."""

    field: str
    stored: str
    here: str


@dataclass(frozen=True)
class Why:
    """See the module's docstring."""

    entry: Stored
    differs: tuple[Difference, ...]
    same: tuple[str, ...]
    unknown: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def stored_entries(database: Database, store: ArtifactStore, beginning: str = "") -> Iterator[Stored]:
    """Entries with keys that begin so."""
    for artifact in store.artifacts():
        if artifact.key.startswith(beginning):
            fields = {name: text for name, text in asdict(artifact.label).items() if text}
            yield Stored(
                "artifact", artifact.key, {"form": FORM if fields else "of another version, or damaged", **fields}
            )
    for kind, table in (("plan", "plans"), ("decision", "decisions")):
        for row in database.rows(table):  # type: ignore[arg-type]
            if row["subject"].startswith(beginning):
                of_row = {"device": row["device"], "fingerprint": read_object(row["fingerprints"]) or {}}
                asked = (read_object(row["value"]) or {}).get(ASKED)
                yield Stored(kind, row["subject"], flat({**of_row, **(asked if isinstance(asked, dict) else {})}))


def flat(fields: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Nested fields as texts by dotted name."""
    found: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{before}{name}.")
        else:
            found[before + name] = value if isinstance(value, str) else json.dumps(value)
    return found


def nearest(entry: Stored, asked: Iterable[Stored]) -> Stored | None:
    """Of what a process asks for, the one that has most fields in common with an entry of its kind."""
    alike = [item for item in asked if item.kind == entry.kind]
    return max(alike, key=lambda item: len(item.fields.items() & entry.fields.items()), default=None)


def why_not(entry: Stored, here: Mapping[str, str]) -> Why:
    """Hold an entry against the fields that are asked for here; what is asked for beyond its fields is ``unknown``."""
    known = [name for name in entry.fields if name in here]
    differs = tuple(
        Difference(name, *_words_that_differ(entry.fields[name], here[name]))
        for name in known
        if entry.fields[name] != here[name]
    )
    same = tuple(name for name in known if entry.fields[name] == here[name])
    return Why(entry, differs, same, tuple(sorted((entry.fields.keys() | here.keys()) - set(known))))


def _words_that_differ(stored: str, here: str) -> tuple[str, str]:
    """Of two long texts of words, such as fingerprints, those that only one has; else the whole texts."""
    ours, theirs = here.split(), stored.split()
    if min(len(ours), len(theirs)) < _FEW_WORDS:
        return stored, here
    only_theirs, only_ours = (
        " ".join(word for word in words if word not in others) for words, others in ((theirs, ours), (ours, theirs))
    )
    return (only_theirs, only_ours) if only_theirs and only_ours else (stored, here)
