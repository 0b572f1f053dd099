"""The suite's results file: one JSON object per line, appended as cases end, read again to resume.

Place: between the runner and its file. Invariants: a line is written whole; the last record of a key counts; a record
made by other code, or with another configuration, has another key and is never taken for this run's.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import threading
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Record = dict[str, Any]

_PACKAGES = ("mixbackend", *(f"mixbackend.{part}" for part in ("contracts", "partitioner", "backends", "benchmarks")))


@cache
def code_version() -> str:
    """Version of the package, of torch, and a digest of our sources: changed code makes old results stale."""
    digest = hashlib.sha256()
    roots = [Path(str(importlib.import_module(name).__file__)).parent for name in _PACKAGES]
    for path in sorted({path for root in roots for path in root.rglob("*.py")}):
        digest.update(path.name.encode() + path.read_bytes())
    return f"{version('mixbackend')}+{digest.hexdigest()[:12]} torch {version('torch')}"


def installed_version(package: str) -> str:
    """Of a distribution; empty where it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def key_of(kind: str, model: str, phase: str, backend: str, settings: Mapping[str, Any], made_by: str) -> str:
    """The identity of a result: what was run, how, and by which code."""
    identity = [kind, model, phase, backend, settings, made_by]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]


class ResultFile:
    """Records on disk; safe to append to from several threads.

    Args:
        path: of the file; folders are made.

    Raises:
        ValueError: the file holds a line, other than a torn last one, that is not a record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._records = self._read()

    def get(self, key: str) -> Record | None:
        """The newest record of a key."""
        return self._records.get(key)

    def records(self) -> tuple[Record, ...]:
        """The newest record of every key, in the order in which the keys came first."""
        with self._lock:
            return tuple(self._records.values())

    def append(self, record: Record) -> None:
        """Add a record and write it through to the file."""
        with self._lock:
            self._records[record["key"]] = record
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(record, sort_keys=True) + "\n")

    def _read(self) -> dict[str, Record]:
        if not self.path.exists():
            return {}
        text = self.path.read_text(encoding="utf-8")
        whole, _, torn = text.rpartition("\n")
        if torn:  # the run before this one was stopped while writing
            self.path.write_text(whole + "\n" if whole else "", encoding="utf-8")
        records: dict[str, Record] = {}
        for number, line in enumerate(whole.splitlines(), 1):
            records.update(_parsed(line, f"{self.path}:{number}"))
        return records


def _parsed(line: str, where: str) -> dict[str, Record]:
    try:
        record = json.loads(line)
        return {record["key"]: record}
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{where}: not a result of the suite; delete or move the file") from error
