"""A folder for native code of backends: written and read by this user alone.

Place: asked by backends that compile shared objects, before anything is written or loaded.
Input: a name below the user's cache folder. Output: an existing folder that only this user can write to.
Invariants: native code is never loaded from where others can write; ``untrusted`` is the one rule for that, and the
artifact store's too. If the usual place is not trusted, a folder in the temporary one of this process is used.
"""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

import platformdirs

from mixbackend.backends.common.process_folder import process_folder

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def usual_cache_folder() -> Path:
    """Where the system wants the user's caches of this project; it need not be there, and nobody vouches for it."""
    return Path(platformdirs.user_cache_dir("mixbackend", appauthor=False))


def private_cache_folder(name: str) -> Path:
    """A folder of that name in the user's cache, or a temporary one where the cache cannot be trusted or written."""
    usual = _usual(name)
    if usual is not None:
        return usual
    temporary = process_folder() / name
    temporary.mkdir(mode=0o700, exist_ok=True)
    return temporary


@cache
def _usual(name: str) -> Path | None:
    usual = usual_cache_folder() / name
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


def untrusted(status: os.stat_result) -> str:
    """Why a file or folder cannot be trusted; ``""`` if only this user can write to it."""
    if not hasattr(os, "getuid"):
        return ""
    if status.st_uid != os.getuid():
        return f"belongs to user {status.st_uid}, not to user {os.getuid()}"
    if status.st_mode & _WRITABLE_BY_OTHERS:
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):o})"
    return ""
