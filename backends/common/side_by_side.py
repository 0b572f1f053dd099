"""How many compilers a backend may run at once in this process: one per core, unless fewer were set.

Place: asked by backends that start compilers; told by processes that work behind the user's, which have one thread.
"""

from __future__ import annotations

import os

_told: list[int] = []


def limit_side_by_side(most: int) -> None:
    """Run no more than so many at once from now on."""
    _told[:] = [most]


def works_behind() -> bool:
    """Whether this process was told so, and works behind the user's."""
    return bool(_told)


def side_by_side() -> int:
    """How many may run at once."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return min([here, *_told])
