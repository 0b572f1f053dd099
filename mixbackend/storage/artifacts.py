"""The artifact store: compiled regions on disk, by content.

Place: asked before a region is compiled, told afterwards.
Input: a key of ``artifact_key`` and bytes of ``CompiledRegion.artifact``. Output: those bytes, or ``None``.
Invariants: writing is atomic (a temporary file, then rename), so readers in other processes see whole entries or none;
every read is verified; what is damaged or foreign is removed and reported. ``get`` and ``put`` never raise.
Non-goals: understanding the bytes. A remote level is trusted as far as the user that configured it trusts it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import mixbackend.storage.entry as entry
from mixbackend.backends.common import forks
from mixbackend.backends.common.private_folder import untrusted
from mixbackend.backends.common.whole_file import PREFIX, replacing
from mixbackend.contracts import CONTRACT_VERSION, WeightPolicy
from mixbackend.storage.entry import UNKNOWN, Entry, Label
from mixbackend.storage.events import Report, StorageEvent, log_event
from mixbackend.storage.folder import behind, private_folder
from mixbackend.storage.remote import Remote

_Read = TypeVar("_Read")
_SUFFIX = ".artifact"
_ABANDONED_AFTER_S = 3600.0
_EVICT_TO = 0.9
LONGEST_READ_S = 20.0
"""So long compiling waits for an artifact of the fleet."""


def artifact_key(region_key: str, backend: str, fingerprint: str, weights: WeightPolicy, device: str) -> str:
    """Name of an artifact: equal for equal regions, backends, fingerprints, contract, weight policy and device."""
    form = entry.MAGIC.decode()
    parts = json.dumps([region_key, backend, fingerprint, CONTRACT_VERSION, weights, device, form])
    return hashlib.sha256(parts.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Artifact:
    """What is known of a stored artifact without reading it.

    Attributes:
        key: its name.
        label: what made it; ``UNKNOWN`` if that cannot be read.
        size: of its file, in bytes.
    """

    key: str
    label: Label
    size: int


class ArtifactStore:
    """See the module's docstring. Safe for many threads and processes.

    Args:
        folder: trusted, see ``private_folder``.
        max_bytes: least recently used entries go when the local level grows over this.
        remote: a second level.
        report: told of everything that was found wrong.
        clock: seconds since the epoch.
        behind: a cache folder that is only read, where this one has nothing.
        used: gets the keys that are read or written.
    """

    _only_reads = False

    def __init__(
        self,
        folder: Path,
        max_bytes: float = 10e9,
        remote: Remote | None = None,
        report: Report = log_event,
        clock: Callable[[], float] = time.time,
        behind: Path | None = None,
        used: set[str] | None = None,
    ) -> None:
        self.folder = folder / "artifacts"
        self._used = set() if used is None else used
        self._max_bytes = max_bytes
        self._remote = remote
        self._report = report
        self._clock = clock
        self._lock = forks.lock()
        self._bytes: int | None = None
        self._behind = None if behind is None else _OnlyRead(behind, report=report)

    @classmethod
    def open(
        cls,
        dir: str | os.PathLike[str] | None = None,
        *,
        remote: str | None = None,
        max_gb: float = 10.0,
        report: Report = log_event,
        used: set[str] | None = None,
    ) -> ArtifactStore:
        """The store of a configuration.

        Raises:
            StorageError: the configured folder cannot be trusted, or the remote's kind is unknown.
        """
        folder = private_folder(dir, report)
        far = None if remote is None else Remote(remote, report)
        return cls(folder, max_gb * 1e9, far, report, behind=behind(folder), used=used)

    def get(self, key: str) -> bytes | None:
        """The bytes stored under a key, ``None`` if there are none that can be trusted."""
        found = self.read(key)
        if found is None and self._remote is not None:
            found = self._remote.get(_remote_path(key), key, LONGEST_READ_S)
            if found is not None:
                self._write(key, found.content, found.label)
        if found is None:
            return None
        self._used.add(key)
        return found.content

    def put(self, key: str, content: bytes, label: Label = UNKNOWN) -> bool:
        """Store bytes under a key; whether the local level took them. Nothing waits for the remote level."""
        stored = self._write(key, content, label)
        self._used.add(key)
        if self._remote is not None:
            self._remote.put_later(_remote_path(key), key, content, label)
        return stored

    def discard(self, key: str, reason: str) -> None:
        """Remove an entry that its backend could not load."""
        self._remove(self.path(key), "corrupt", reason)

    def clear(self) -> int:
        """Remove every local entry; returns how many."""
        entries = self._entries()
        gone = sum(self._unlink(path) for path, _ in entries)
        self._sweep(0.0)
        self._bytes = None
        return gone

    def remove(self, key: str) -> bool:
        """Remove one local entry; whether it is gone."""
        return self._unlink(self.path(key))

    def artifacts(self) -> Iterator[Artifact]:
        """What lies in the local level, and behind it, each in order of keys."""
        for path, status in sorted(self._entries(), key=lambda item: item[0].name):
            try:
                label = self._read_trusted(path, lambda file: entry.read_label(file.read(entry.HEAD_BYTES)))
            except OSError:
                # Evicted by another process, or nothing to read.
                continue
            yield Artifact(path.name.removesuffix(_SUFFIX), label or UNKNOWN, status.st_size)
        yield from () if self._behind is None else self._behind.artifacts()

    def usage(self) -> tuple[int, int]:
        """Number and bytes of local entries."""
        entries = self._entries()
        return len(entries), sum(status.st_size for _, status in entries)

    def path(self, key: str) -> Path:
        """The file of a key, which need not be there."""
        return self.folder / key[:2] / f"{key}{_SUFFIX}"

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, key: str) -> Entry | None:
        """The verified entry of the local level, or of what lies behind it."""
        found = self._read_here(key)
        return self._behind.read(key) if found is None and self._behind is not None else found

    def _read_here(self, key: str) -> Entry | None:
        path = self.path(key)
        try:
            found = self._read_trusted(path, lambda file: entry.read(key, file))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._report(StorageEvent("unreadable", f"artifact {path}: {error}"))
            return None
        if found is None:
            return None
        if isinstance(found, str):
            self._remove(path, "corrupt", found)
            return None
        self._touch(path)
        return found

    def _read_trusted(self, path: Path, read: Callable[[BinaryIO], _Read]) -> _Read | None:
        # The file that is looked at is the file that is read: a path could be exchanged in between.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        if path.is_symlink():
            self._remove(path, "foreign", "is a link")
            return None
        # Without a buffer: it would copy what may be hundreds of megabytes.
        with open(os.open(path, flags), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            problem = untrusted(status, self._only_reads) or (
                "" if stat.S_ISREG(status.st_mode) else "is not a plain file"
            )
            if not problem:
                return read(file)
        self._remove(path, "foreign", problem)
        return None

    def _touch(self, path: Path) -> None:
        now = self._clock()
        try:
            os.utime(path, (now, now))
        except OSError:
            # Another process evicted it between our read and now: the content is good all the same.
            return

    def _remove(self, path: Path, kind: str, reason: str) -> None:
        try:
            if self._only_reads:
                raise OSError("its folder is only read")
            path.unlink(missing_ok=True)
        except OSError as error:
            reason = f"{reason}, and cannot be removed: {error}"
        self._report(StorageEvent(kind, f"artifact {path} {reason}"))  # type: ignore[arg-type]

    # --- writing -----------------------------------------------------------------------------------------------------

    def _write(self, key: str, content: bytes, label: Label) -> bool:
        data = entry.encode(key, content, label)
        path = self.path(key)
        if len(data) > self._max_bytes:
            self._report(StorageEvent("unwritable", f"artifact of {len(data)} bytes is over the limit of the store"))
            return False
        try:
            self._replace(path, data)
        except OSError as error:
            self._report(StorageEvent("unwritable", f"artifact {path}: {error}"))
            return False
        self._make_room(len(data))
        return True

    def _replace(self, path: Path, data: bytes) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with replacing(path) as file:
            file.write(data)
            file.flush()
            now = self._clock()
            os.utime(file.name, (now, now))

    def _make_room(self, added: int) -> None:
        with self._lock:
            if self._bytes is None:
                self._sweep(_ABANDONED_AFTER_S)
                self._bytes = sum(status.st_size for _, status in self._entries())
            else:
                self._bytes += added
            if self._bytes > self._max_bytes:
                self._bytes = self._evict()

    def _evict(self) -> int:
        self._sweep(_ABANDONED_AFTER_S)
        entries = sorted(self._entries(), key=lambda item: (item[1].st_mtime, item[0].name))
        total = sum(status.st_size for _, status in entries)
        for path, status in entries:
            if total <= self._max_bytes * _EVICT_TO:
                break
            if self._unlink(path):
                total -= status.st_size
        return total

    def _unlink(self, path: Path) -> bool:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self._report(StorageEvent("unwritable", f"artifact {path} cannot be removed: {error}"))
            return False
        return True

    def _sweep(self, older_than_s: float) -> None:
        """Remove what writers left behind that were killed."""
        for path in self.folder.glob(f"*/{PREFIX}*"):
            try:
                if self._clock() - path.stat().st_mtime >= older_than_s:
                    path.unlink()
            except OSError:
                # Its writer finished in the meantime, or it is not ours to remove.
                continue

    def _entries(self) -> list[tuple[Path, os.stat_result]]:
        found: list[tuple[Path, os.stat_result]] = []
        for path in self.folder.glob(f"*/*{_SUFFIX}"):
            try:
                found.append((path, path.lstat()))
            except FileNotFoundError:
                # Evicted by another process.
                continue
        return found


class _OnlyRead(ArtifactStore):
    """A level that was made elsewhere, as part of an image."""

    _only_reads = True


def _remote_path(key: str) -> str:
    return f"{key[:2]}/{key}{_SUFFIX}"
