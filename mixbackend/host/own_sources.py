"""Our own sources as a stamp: what was worked out by other code is worked out anew.

Place: a part of the keys of what planning left in the database. Output: a text that changes when a file of ours does.
Invariants: files are looked at, not read, once per process.
Non-goals: what compiled code depends on: backends say that themselves (``Backend.fingerprint``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from importlib.util import find_spec

from mixbackend.host.process_facts import process_fact
from mixbackend.host.version import VERSION

_PACKAGES = ("mixbackend", "mixbackend.contracts", "mixbackend.partitioner", "mixbackend.backends")
_SUFFIXES = (".py", ".json", ".tsv", ".cpp", ".hpp")


@process_fact
def own_sources() -> str:
    """The stamp."""
    folders = {folder for name in _PACKAGES for folder in _folders(name)}
    files = sorted(item for folder in folders for item in _files(folder))
    return f"{VERSION} {hashlib.sha256(repr(files).encode()).hexdigest()[:16]}"


def _folders(package: str) -> tuple[str, ...]:
    spec = find_spec(package)
    return tuple(spec.submodule_search_locations or ()) if spec is not None else ()


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    """Path, bytes, and time of the last change."""
    with os.scandir(folder) as items:
        for item in items:
            if item.is_dir(follow_symlinks=False):
                yield from _files(item.path) if item.name != "__pycache__" else ()
            elif item.name.endswith(_SUFFIXES):
                found = item.stat()
                yield item.path, found.st_size, found.st_mtime_ns
