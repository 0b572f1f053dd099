"""Freed memory stays in the process: values between regions are not paid for by page faults at every call.

Place: applied when a process opens its first environment. Input and output: none; the C library's allocator is told.
Why: torch allocates every value on the processor with ``malloc``. By default glibc gives large pieces back to the
system when they are freed, and each of their pages (4 KiB) costs a fault when the next value is made: more than the
kernel that fills it. Other runtimes keep memory in arenas of their own for the same reason.
Invariants: done once; only with glibc; not if the user decided (``MALLOC_...`` variables, ``GLIBC_TUNABLES``, another
allocator before it in ``LD_PRELOAD``). Memory in use at the same time does not grow by it.
Non-goals: pieces that are larger than glibc keeps; ``contracts.result_memory`` has those that results lie in.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Mapping

from mixbackend.contracts.result_memory import LARGEST_KEPT_BYTES, MOST_KEPT_BYTES, forget_unused_results
from mixbackend.host.process_facts import on_reset, process_fact

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_USERS_CHOICE = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_ARENA_TEST")


def decided_by_user(environment: Mapping[str, str]) -> bool:
    """Whether the environment says how memory is to be kept."""
    tuned = "glibc.malloc" in environment.get("GLIBC_TUNABLES", "")
    other = any(name in environment.get("LD_PRELOAD", "") for name in ("jemalloc", "tcmalloc", "mimalloc"))
    return tuned or other or any(name in environment for name in _USERS_CHOICE)


def give_back_unused_memory() -> None:
    """Now, whatever is kept otherwise: for moments when much was freed for good."""
    forget_unused_results()
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


@process_fact
def keep_freed_memory() -> bool:
    """Tell the allocator, once; whether it took it."""
    if decided_by_user(os.environ):
        return False
    try:
        library = ctypes.CDLL(None)
        if not hasattr(library, "gnu_get_libc_version"):
            return False
        taken = library.mallopt(_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
        return bool(taken and library.mallopt(_TRIM_THRESHOLD, MOST_KEPT_BYTES))
    except (OSError, AttributeError, TypeError):
        return False


on_reset(forget_unused_results)
