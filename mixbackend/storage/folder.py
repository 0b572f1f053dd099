"""The folder that storage may trust.

Place: asked by the store and the database before anything is read or written.
Input: the configured folder, or none. Output: an existing folder that only this user can write to.
Where the usual folder can only be read, a temporary one is written to, and the usual one lies behind it.
Invariants: artifacts may hold native code, so a folder that others can write to is never used.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mixbackend.backends.common.private_folder import read_only_cache, untrusted, usual_cache_folder
from mixbackend.backends.common.process_folder import process_folder, process_folder_if_any
from mixbackend.contracts import StorageError
from mixbackend.storage.events import Report, StorageEvent, log_event


def private_folder(configured: str | os.PathLike[str] | None = None, report: Report = log_event) -> Path:
    """The cache folder, created with mode 0700 if it is missing.

    Args:
        configured: what the user asked for; ``None`` takes the system's usual place for caches and, should that be
            unusable, the temporary folder of this process.
        report: told when the temporary folder takes over.

    Raises:
        StorageError: the configured folder cannot be created, belongs to another user, or others can write to it.
    """
    if configured is not None:
        return _claim(Path(configured).expanduser())
    try:
        return _claim(usual_cache_folder())
    except StorageError as error:
        folder, image = process_folder(), read_only_cache()
        why, whose = (error.what, "") if image is None else (f"cache folder {image} is only read", "what is new in ")
        report(StorageEvent("temporary", f"{why}; using {folder} for {whose}this process"))
        return folder


def behind(folder: Path) -> Path | None:
    """The folder that is read where a folder of ``private_folder`` has nothing; ``None`` if there is none."""
    return read_only_cache() if folder == process_folder_if_any() else None


def _claim(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        resolved = folder.resolve(strict=True)
        status = resolved.stat()
    except OSError as error:
        raise StorageError(
            f"cache folder {folder} cannot be used: {error}", hint="set cache.dir to a folder you can write to"
        ) from error
    problem = untrusted(status) or ("" if stat.S_ISDIR(status.st_mode) else "is not a folder")
    if problem:
        raise StorageError(
            f"cache folder {resolved} {problem}",
            hint=f"make it private (chmod 700 {resolved}), or set cache.dir to a folder of your own",
        )
    if not os.access(resolved, os.R_OK | os.W_OK | os.X_OK):
        raise StorageError(
            f"cache folder {resolved} cannot be written", hint="set cache.dir to a folder you can write to"
        )
    return resolved
