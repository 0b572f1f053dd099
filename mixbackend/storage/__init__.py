"""What outlives a process: compiled artifacts, what was learned, quarantines.

Place: below the runtime and calibration, above nothing of ours but ``contracts``.
Invariants: no call into a store or database raises because of what lies on disk; whatever is damaged or foreign is
removed or set aside, reported, and rebuilt. Nothing is unpickled.
"""

from mixbackend.storage.artifacts import ArtifactStore, artifact_key
from mixbackend.storage.database import Database
from mixbackend.storage.entry import Label
from mixbackend.storage.events import StorageEvent, log_event
from mixbackend.storage.eviction import evict
from mixbackend.storage.folder import private_folder
from mixbackend.storage.storage import Storage, remembers
from mixbackend.storage.validity import ThisMachine

__all__ = [
    "ArtifactStore",
    "Database",
    "Label",
    "Storage",
    "StorageEvent",
    "ThisMachine",
    "artifact_key",
    "evict",
    "log_event",
    "private_folder",
    "remembers",
]
