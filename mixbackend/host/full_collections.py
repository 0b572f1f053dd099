"""Full collections of garbage wait until a graph is compiled, or our modules are loaded.

Place: around what Dynamo does for a graph, from the first traced line to running code; around ``Mixture.__call__``,
which others than Dynamo call, too; around what a call of a graph makes that it lacks; and around the first use of
``mixbackend``'s names and the loading of Dynamo by ``auto()``.
Loading and compiling make hundreds of thousands of values that stay until they are done. Python walks all of them, and
all that was there before, a dozen times meanwhile, which takes a tenth to a fifth of the time. Young garbage is
collected as ever, and it is nearly all that there is.
Invariants: the process has the thresholds it had when nothing compiles any more, unless other code set others
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


class _Compiling:
    """Something that compiles: its thread, and the threshold to go back to."""

    __slots__ = ("before", "thread")

    def __init__(self, before: int) -> None:
        self.thread = threading.get_ident()
        self.before = before


_lock = threading.Lock()
_waiting: list[_Compiling] = []
_of_dynamo: list[_Compiling] = []
"""What Dynamo compiles: one entry from the start of its first compilation to the end of its last one."""


@contextmanager
def full_collections_later() -> Iterator[None]:
    """No full collection begins by itself in here; those that code asks for happen."""
    with _lock:
        mine = _enter()
    try:
        yield
    finally:
        with _lock:
            _leave(mine)


def compilation_starts() -> None:
    """Dynamo begins to compile."""
    with _lock:
        if not _of_dynamo:
            _of_dynamo.append(_enter())


def compilation_ends() -> None:
    """Dynamo compiles nothing any more; the thread that says so need not be the one that began."""
    with _lock:
        while _of_dynamo:
            _leave(_of_dynamo.pop())


def _enter() -> _Compiling:
    young, middle, old = gc.get_threshold()
    mine = _Compiling(_waiting[-1].before if _waiting else old)
    _waiting.append(mine)
    gc.set_threshold(young, middle, _NEVER)
    return mine


def _leave(mine: _Compiling) -> None:
    """One has ended; in a child that was forked meanwhile, those of other threads have ended before."""
    if mine in _waiting:
        _waiting.remove(mine)
        _restore(mine.before)


def _restore(before: int) -> None:
    young, middle, old = gc.get_threshold()
    if not _waiting and old == _NEVER:
        gc.set_threshold(young, middle, before)


def _after_fork() -> None:
    """In the child, which has none of the other threads: no thread compiles but the one that forked."""
    _lock.release()
    for item in [item for item in _waiting if item.thread != threading.get_ident()]:
        _leave(item)
    _of_dynamo[:] = [item for item in _of_dynamo if item in _waiting]


if hasattr(os, "register_at_fork"):
    # Not through ``forks``, which would load more of the package than the code that uses this wants.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork)
