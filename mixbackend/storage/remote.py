"""The remote level of storage: any URL that fsspec understands.

Place: behind the local level of the artifact store and of the database; read on a local miss, written after a local
write.
Invariants: what is read is verified like a local entry; reading takes no longer than it may, writing is not waited for;
no failure raises, and after some in a row the remote is left alone for the rest of the process.
Non-goals: eviction (a fleet's storage has its own rules); trust: every user that can write there is trusted like this
one.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import mixbackend.storage.entry as entry
from mixbackend.backends.common import forks
from mixbackend.contracts import StorageError
from mixbackend.storage.background_io import BackgroundQueue, within_time
from mixbackend.storage.events import Report, StorageEvent

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_FAILURES_BEFORE_GIVING_UP = 3
LONGEST_WRITE_S = 60.0
"""A write that takes longer counts as failed; nothing waits for it."""


class Remote:
    """See the module's docstring.

    Args:
        url: for instance ``s3://bucket/folder`` or ``file:///shared/folder``.
        report: told of failures and of entries that do not verify.

    Raises:
        StorageError: no file system of this kind is installed.
    """

    def __init__(self, url: str, report: Report) -> None:
        from fsspec.core import url_to_fs

        self.background = BackgroundQueue()
        self._report = report
        self._failures = 0
        self._lock = forks.lock()
        self._url = url
        try:
            self._system: AbstractFileSystem
            self._system, self._root = url_to_fs(url)
        except (ValueError, ImportError, OSError) as error:
            raise StorageError(
                f"remote cache {url!r} cannot be used: {error}",
                hint="install the fsspec plug-in of its kind, or unset cache.remote",
            ) from error

    def get(self, path: str, key: str, timeout_s: float) -> entry.Entry | None:
        """The verified entry of a key, ``None`` if there is none, or none in time.

        Args:
            path: below the URL.
            key: what the entry proves to belong to.
            timeout_s: how long to wait.
        """
        if self.given_up:
            return None
        place = self._place(path)
        try:
            data = within_time(timeout_s, lambda: self._system.cat_file(place))
        except FileNotFoundError:
            self._failures = 0
            return None
        except Exception as error:
            # Each kind of file system has errors of its own.
            self._failed("reading", error)
            return None
        self._failures = 0
        found = entry.decode(key, data)
        if isinstance(found, str):
            self._report(StorageEvent("corrupt", f"remote entry {place} {found}"))
            return None
        return found

    def put_later(self, path: str, key: str, content: bytes, label: entry.Label = entry.UNKNOWN) -> None:
        """Store an entry, soon; other machines see it whole or not at all."""
        if self.background.stuck_s() > LONGEST_WRITE_S:
            self._failed("writing", TimeoutError(f"not done within {LONGEST_WRITE_S:g} s"), _FAILURES_BEFORE_GIVING_UP)
        if self.given_up:
            return
        if not self.background.add(path, lambda: self.put(path, key, content, label), len(content)):
            self._report(StorageEvent("remote", f"{path} is not shared: too much waits to be written to {self._url}"))

    def put(self, path: str, key: str, content: bytes, label: entry.Label = entry.UNKNOWN) -> None:
        """Store an entry now."""
        if self.given_up:
            return
        try:
            self._write(self._place(path), entry.encode(key, content, label))
            self._failures = 0
        except Exception as error:
            self._failed("writing", error)

    def _write(self, place: str, data: bytes) -> None:
        temporary = f"{place}.writing-{secrets.token_hex(8)}"
        self._system.makedirs(place.rsplit("/", 1)[0], exist_ok=True)
        self._system.pipe_file(temporary, data)
        self._system.mv(temporary, place)

    def _place(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"

    @property
    def given_up(self) -> bool:
        """Whether it failed too often."""
        return self._failures >= _FAILURES_BEFORE_GIVING_UP

    def _failed(self, action: str, error: Exception, weight: int = 1) -> None:
        with self._lock:
            if self.given_up:
                return
            self._failures += weight
        last = " and is not asked again by this process" if self.given_up else ""
        self._report(StorageEvent("remote", f"{action} {self._url} failed{last}: {type(error).__name__}: {error}"))
