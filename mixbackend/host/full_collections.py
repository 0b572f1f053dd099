"""Full collections of garbage wait until a graph is compiled, or our modules are loaded.

Place: around ``Mixture.__call__``, from capture to running code, around what a call of a graph makes that it lacks, and
around the first use of ``mixbackend``'s names.
Loading and compiling make hundreds of thousands of values that stay until they are done. Python walks all of them, and
all that was there before, a dozen times meanwhile, which takes a tenth to a fifth of the time. Young garbage is
collected as ever, and it is nearly all that there is.
Invariants: the process has the thresholds it had when nobody compiles any more, unless somebody else set others
meanwhile. Several threads may compile at once.
Non-goals: collectors without generations of their own, which ignore the threshold.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 2**31 - 1

_lock = threading.Lock()
_waiting: list[tuple[int, int]] = []
"""For each that compiles: its thread, and the threshold to go back to."""


@contextmanager
def full_collections_later() -> Iterator[None]:
    """No full collection begins by itself in here; those that somebody asks for happen."""
    with _lock:
        young, middle, old = gc.get_threshold()
        _waiting.append((threading.get_ident(), _waiting[-1][1] if _waiting else old))
        gc.set_threshold(young, middle, _NEVER)
    try:
        yield
    finally:
        with _lock:
            _leave()


def _leave() -> None:
    """One of this thread has ended."""
    mine = next(item for item in reversed(_waiting) if item[0] == threading.get_ident())
    _waiting.remove(mine)
    _restore(mine[1])


def _restore(before: int) -> None:
    young, middle, old = gc.get_threshold()
    if not _waiting and old == _NEVER:
        gc.set_threshold(young, middle, before)


def _after_fork() -> None:
    """In the child, which has none of the other threads: nobody compiles but the one that forked."""
    _lock.release()
    others = [item for item in _waiting if item[0] != threading.get_ident()]
    for item in others:
        _waiting.remove(item)
        _restore(item[1])


if hasattr(os, "register_at_fork"):
    # Not through ``forks``, which would load more of the package than whoever uses this wants.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork)
