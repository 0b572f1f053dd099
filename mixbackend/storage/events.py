"""What storage found and did about it.

Place: made by the store and the database; the default report writes to the log; an environment keeps them
as events of its report, which logs each once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

StorageEventKind = Literal[
    "corrupt",  # an entry does not have the bytes that were written; it was removed
    "foreign",  # an entry that another user could have written, or of another kind; it was removed
    "set-aside",  # a database file was renamed and a new one begun
    "unwritable",  # something could not be stored
    "unreadable",  # something could not be read and counts as missing
    "remote",  # the remote level failed
    "temporary",  # the usual folder cannot be used; a folder of this process takes its place
]


@dataclass(frozen=True, slots=True)
class StorageEvent:
    """One finding.

    Attributes:
        kind: see ``StorageEventKind``.
        detail: the file and the reason, in words.
    """

    kind: StorageEventKind
    detail: str


Report = Callable[[StorageEvent], None]
"""Takes events; must be quick and must not raise."""


def log_event(event: StorageEvent) -> None:
    """The default report: a warning in the log."""
    logging.getLogger("mixbackend.storage").warning("%s: %s", event.kind, event.detail)
