"""One builder per machine and cache folder.

Place: held by ``behind_governor`` while it has work; the file lies in the cache folder.
Input: a path. Output: whether this process is the builder.
Invariants: the system releases it however its holder ends, so that it is never stale; nothing waits for it. It is held
by a process that neither forks nor gives it to the processes that it starts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

try:
    import fcntl
except ImportError:  # not on Windows, where nothing is built behind
    fcntl = None  # type: ignore[assignment]

Taken = Literal["held", "elsewhere", "impossible"]


class BuilderLock:
    """See the module's docstring.

    Args:
        path: of the file; its folder exists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: int | None = None

    def take(self) -> Taken:
        """Become the builder, if no other process is."""
        if self._held is not None:
            return "held"
        if fcntl is None:
            return "impossible"
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return "impossible"
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            return "elsewhere" if isinstance(error, BlockingIOError) else "impossible"
        self._held = descriptor
        return "held"

    def release(self) -> None:
        """Let another process be the builder."""
        if self._held is not None:
            os.close(self._held)
            self._held = None
