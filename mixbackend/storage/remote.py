"""The remote level of the artifact store: any URL that fsspec understands.

Place: behind the local level; read on a local miss, written after a local write.
Invariants: what is read is verified like a local entry; no failure raises, and after some in a row the remote is left
alone for the rest of the process.
Non-goals: eviction; a fleet's storage has its own rules.
"""

from __future__ import annotations

import secrets
import threading

import fsspec
from fsspec.core import url_to_fs

from mixbackend.contracts import StorageError
from mixbackend.storage import entry
from mixbackend.storage.events import Report, StorageEvent

_FAILURES_BEFORE_GIVING_UP = 3


class Remote:
    """See the module's docstring.

    Args:
        url: for instance ``s3://bucket/folder`` or ``file:///shared/folder``.
        report: told of failures and of entries that do not verify.

    Raises:
        StorageError: no file system of this kind is installed.
    """

    def __init__(self, url: str, report: Report) -> None:
        self._report = report
        self._failures = 0
        self._lock = threading.Lock()
        self._url = url
        try:
            self._system: fsspec.AbstractFileSystem
            self._system, self._root = url_to_fs(url)
        except (ValueError, ImportError, OSError) as error:
            raise StorageError(
                f"remote cache {url!r} cannot be used: {error}",
                hint="install the fsspec plug-in of its kind, or unset cache.remote",
            ) from error

    def get(self, key: str) -> bytes | None:
        """The verified bytes of a key, or ``None``."""
        if self._given_up():
            return None
        try:
            data = self._system.cat_file(self._path(key))
        except FileNotFoundError:
            self._failures = 0
            return None
        except Exception as error:
            # Each kind of file system has errors of its own.
            self._failed("reading", error)
            return None
        self._failures = 0
        content = entry.decode(key, data)
        if isinstance(content, str):
            self._report(StorageEvent("corrupt", f"remote artifact {self._path(key)} {content}"))
            return None
        return content

    def put(self, key: str, content: bytes) -> None:
        """Store bytes; other machines see them whole or not at all."""
        if self._given_up():
            return
        path = self._path(key)
        temporary = f"{path}.writing-{secrets.token_hex(8)}"
        try:
            self._system.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            self._system.pipe_file(temporary, entry.encode(key, content))
            self._system.mv(temporary, path)
            self._failures = 0
        except Exception as error:
            self._failed("writing", error)

    def _path(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{key[:2]}/{key}.artifact"

    def _given_up(self) -> bool:
        return self._failures >= _FAILURES_BEFORE_GIVING_UP

    def _failed(self, action: str, error: Exception) -> None:
        with self._lock:
            self._failures += 1
        last = " and is not asked again by this process" if self._given_up() else ""
        self._report(StorageEvent("remote", f"{action} {self._url} failed{last}: {type(error).__name__}: {error}"))
