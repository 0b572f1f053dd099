"""Confirmations: how many processes found a region right.

Place: between the database and ``execute.region_code``. Input: a region, the backend that compiled it, classes of
sizes.
Output: a count; this process is added once for each class.
"""

from __future__ import annotations

from dataclasses import dataclass

from mixbackend.host.process_identity import process_identity
from mixbackend.storage import Storage


@dataclass(frozen=True)
class Confirmations:
    """Of one region by one backend.

    Attributes:
        storage: where they are kept.
        region: its key.
        backend, fingerprint: of the code.
    """

    storage: Storage
    region: str
    backend: str
    fingerprint: str

    def count(self, sizes: str) -> int:
        """How many processes found it right at such sizes."""
        return self.storage.database.confirmations(self.region, self.backend, self.fingerprint, sizes)

    def add(self, sizes: str) -> None:
        """This process did."""
        self.storage.database.confirm(self.region, self.backend, self.fingerprint, sizes, process_identity())
