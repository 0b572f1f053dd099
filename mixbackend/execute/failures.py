"""Failures: which backend failed on which region, and which regions were found right, by fingerprint.

Place: asked by the compile cache before a region is compiled; told where compiling, running or checking one fails.
Input: a backend and a region. Output: ``QuarantinedError``, or what was confirmed of the region's code.
Invariants: a backend that failed on a region stays excluded from it until its fingerprint changes, in this process and
in those that share the database; regions that only this process can read are remembered here alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from mixbackend.backends.common import forks
from mixbackend.contracts import Backend, QuarantinedError, Region
from mixbackend.execute.confirmations import Confirmations
from mixbackend.storage import Storage


class Failures:
    """See the module's docstring.

    Args:
        storage: where both are kept.
        fingerprints: of the backends, by name.
    """

    def __init__(self, storage: Storage, fingerprints: Mapping[str, str]) -> None:
        self._storage = storage
        self._fingerprints = fingerprints
        self._lock = forks.reentrant_lock()
        self._quarantined: dict[tuple[str, str], str | None] = {}

    def refuse_quarantined(self, backend: Backend, region: Region) -> None:
        """Raise if a backend failed on a region before.

        Raises:
            QuarantinedError: with what happened then.
        """
        if backend.traits().reference:
            return
        reason = self._reason(backend, region)
        if reason is not None:
            raise QuarantinedError(
                what=f"backend {backend.name!r} failed on this region before: {reason}",
                hint="it is tried again after its library changes, or with another cache folder (cache.dir)",
            )

    def quarantine(self, backend: Backend, region: Region, reason: str) -> None:
        """Remember that a backend failed on a region, until the backend's fingerprint changes."""
        with self._lock:
            if self._quarantined.get((backend.name, region.key)) is not None:
                return
            self._quarantined[backend.name, region.key] = reason
        if not region.is_local:
            self._storage.database.quarantine(region.key, backend.name, self._fingerprints[backend.name], reason)

    def confirmations(self, backend: Backend, region: Region) -> Confirmations | None:
        """What processes found right of a region; ``None`` if no other process can read it."""
        if region.is_local:
            return None
        return Confirmations(self._storage, region.key, backend.name, self._fingerprints[backend.name])

    def _reason(self, backend: Backend, region: Region) -> str | None:
        key = (backend.name, region.key)
        with self._lock:
            if key not in self._quarantined and not region.is_local:
                fingerprint = self._fingerprints[backend.name]
                self._quarantined[key] = self._storage.database.quarantined(region.key, backend.name, fingerprint)
            return self._quarantined.get(key)
