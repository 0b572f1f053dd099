"""A folder for native code of backends: written and read by this user alone.

Place: asked by backends that compile shared objects, before anything is written or loaded.
Input: a name below the user's cache folder. Output: an existing folder that only this user can write to.
Invariants: native code is never loaded from where others can write; ``untrusted`` is the one rule for that, and the
artifact store's too. If the usual place is not trusted or cannot be written, a folder in the temporary one of this
process is used; it begins with what lies in a usual place that can only be read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from functools import cache
from pathlib import Path

import platformdirs

from mixbackend.backends.common.process_folder import process_folder

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


FOLDER_VARIABLE = "MIXBACKEND_CACHE"
"""Names the cache folder, in place of the system's; one that can only be read is read."""


def usual_cache_folder() -> Path:
    """Where the user's caches of this project are; it need not be there, and is not checked."""
    named = os.environ.get(FOLDER_VARIABLE, "")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("mixbackend", appauthor=False))


def read_only_cache() -> Path | None:
    """The usual cache folder where it is one that this process can trust and only read, as in images of containers."""
    try:
        usual = usual_cache_folder().resolve(strict=True)
        writable = os.access(usual, os.W_OK) and not untrusted(usual.stat())
        trusted = usual.is_dir() and os.access(usual, os.R_OK | os.X_OK) and not untrusted(usual.stat(), reading=True)
    except OSError:
        return None
    return usual if trusted and not writable else None


def private_cache_folder(name: str) -> Path:
    """A folder of that name in the user's cache, or a temporary one where the cache cannot be trusted or written."""
    usual = _usual(usual_cache_folder() / name, os.getuid() if hasattr(os, "getuid") else 0)
    if usual is not None:
        return usual
    temporary = process_folder() / name
    if not temporary.is_dir():
        temporary.mkdir(mode=0o700, exist_ok=True)
        _copy_files(read_only_cache(), temporary)
    return temporary


def _copy_files(cache_folder: Path | None, to: Path) -> None:
    """Files of the same name's folder, as this user's own; what cannot be read or trusted is made again."""
    for file in sorted((cache_folder / to.name).glob("*")) if cache_folder is not None else ():
        with contextlib.suppress(OSError):
            status = file.lstat()
            if stat.S_ISREG(status.st_mode) and not untrusted(status, reading=True):
                shutil.copyfile(file, to / file.name)
                (to / file.name).chmod(0o600)


@cache
def _usual(usual: Path, user: int) -> Path | None:
    """The folder if this user (another one, perhaps, in a fork) can trust and write it."""
    try:
        usual.mkdir(mode=0o700, parents=True, exist_ok=True)
        usual = usual.resolve(strict=True)
        trusted = not distrust(usual) and os.access(usual, os.R_OK | os.W_OK | os.X_OK)
    except OSError:
        trusted = False
    return usual if trusted else None


def distrust(*places: Path) -> str:
    """Why a file or folder cannot be trusted; ``""`` if only this user can write to any of them."""
    for place in places:
        problem = untrusted(place.stat())
        if problem:
            return f"{place} {problem}"
    return ""


def untrusted(status: os.stat_result, reading: bool = False) -> str:
    """Why a file or folder cannot be trusted; ``""`` if only this user can write to it.

    Args:
        status: of the file or folder.
        reading: whether it is only read: then it may be the administrator's, as shared libraries are.
    """
    if not hasattr(os, "getuid"):
        return ""
    if status.st_uid != os.getuid() and not (reading and status.st_uid == 0):
        return f"belongs to user {status.st_uid}, not to user {os.getuid()}"
    if status.st_mode & _WRITABLE_BY_OTHERS:
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):o})"
    return ""
