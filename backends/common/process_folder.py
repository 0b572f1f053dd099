"""The temporary folder of this process, for what has no usable cache folder: one, and removed when it is unused.

Place: below ``private_folder`` and the storage's ``folder``. Input: none. Output: a folder that only this user can
write to, the same for the whole process.
Method: a lock on a file in the folder says that it is in use: the system lets go of it however a process ends, and
forks hold it, too. The process removes its folder at its end; when it makes one, and at its end, it also removes those
of processes that were killed.
Invariants: only folders of this user, with this name and with such a file that is not locked are removed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from mixbackend.backends.common import forks

try:
    import fcntl
except ImportError:
    # Not on Windows, where nothing that others left counts as abandoned.
    fcntl = None  # type: ignore[assignment]

PREFIX = "mixbackend-cache-"
_IN_USE = "in-use"


class ProcessFolder:
    """See the module's docstring; made once per process."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._owner = 0
        self._path: Path | None = None
        self._held = -1

    def path(self) -> Path:
        """The folder, which is made now if there is none yet; in a fork of the same user, that of its parent."""
        with self._lock:
            if self._path is None or not self._path.is_dir() or not os.access(self._path, os.W_OK | os.X_OK):
                remove_abandoned()
                self._owner = os.getpid()
                self._path, self._held = _made()
                atexit.register(self.remove)
            return self._path

    def made(self) -> Path | None:
        """The folder, if there is one."""
        with self._lock:
            return self._path

    def remove(self) -> None:
        """Called at the end of the process, and in its forks, which leave the folder to it."""
        with self._lock:
            if self._path is None or self._owner != os.getpid():
                return
            # A fork that still runs holds the lock as well; a later process removes the folder then.
            os.close(self._held)
            if fcntl is None:
                shutil.rmtree(self._path, ignore_errors=True)
            self._path = None
            remove_abandoned()


def remove_abandoned() -> None:
    """Remove folders of processes that have ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            _remove_if_abandoned(folder)


def _made() -> tuple[Path, int]:
    """A new folder, and the descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        held = os.open(folder / _IN_USE, os.O_CREAT | os.O_RDWR, 0o600)
        if fcntl is None or (_take(held) and (folder / _IN_USE).exists()):
            return folder, held
        # Another process found it before it was locked, and removes it.
        os.close(held)


def _remove_if_abandoned(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or (hasattr(os, "getuid") and status.st_uid != os.getuid()):
        return
    held = os.open(folder / _IN_USE, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    try:
        if _take(held):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(held)


def _take(descriptor: int) -> bool:
    """Lock a file without waiting; false if it is locked elsewhere."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


_folder = ProcessFolder()


def process_folder() -> Path:
    """The temporary folder of this process."""
    return _folder.path()


def process_folder_if_any() -> Path | None:
    """The same; ``None`` where it was not asked for yet."""
    return _folder.made()
