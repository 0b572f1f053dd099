"""Forks: locks that the child of a fork finds free, and what it forgets of threads that it does not have.

Place: below the rooms of the package. A lock that calls may take is made here; what notes the doings of threads and of
other processes follows forks. Imports the standard library alone: processes without torch use it, too.
Input: none. Output: locks, as ``threading`` has them; how many forks lead to this process.
Method: the thread that forks takes all locks of short sections before, as ``std::lock`` does (it holds none while it
waits for one), so that the child finds what they guard whole. Locks that are held while something is made or run are
not waited for: in the child they are free, and what was being made is made again.
Invariants: a fork waits at most ``LONGEST_S``; what is held even then is free in the child, too. A reentrant lock that
the thread which forks holds stays its own. What no child may inherit is closed while the locks are held.
Non-goals: locks of torch, of libraries and of OpenMP: a child must call ``torch.set_num_threads(1)``, in eager as well,
if its parent used several threads of torch's.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

LONGEST_S = 0.5

logger = logging.getLogger("mixbackend")


class Follower(Protocol):
    """Notes what threads or other processes are doing."""

    def after_fork(self) -> None:
        """This is the child: forget what belongs to the parent. Locks are free already."""
        ...


class Closer(Protocol):
    """Has something open that no child may inherit."""

    def before_fork(self) -> None:
        """Close it; it is opened again when it is needed. This thread has all locks that it could get."""
        ...


_short: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_long: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_followers: weakref.WeakValueDictionary[int, Follower] = weakref.WeakValueDictionary()
_closers: weakref.WeakValueDictionary[int, Closer] = weakref.WeakValueDictionary()
_of_thread = threading.local()
"""``held``: locks that the thread which forks has taken for that."""
_count = 0


def lock() -> threading.Lock:
    """A lock of sections that end within microseconds."""
    return _kept(threading.Lock(), _short)


def reentrant_lock() -> Any:
    """The same, which the thread that holds it may take again."""
    return _kept(threading.RLock(), _short)


def long_lock() -> threading.Lock:
    """A lock that is held while something is made, loaded or run."""
    return _kept(threading.Lock(), _long)


def long_reentrant_lock() -> Any:
    """The same, which the thread that holds it may take again."""
    return _kept(threading.RLock(), _long)


def follow(follower: Follower) -> None:
    """Tell it after every fork, in the child, as long as it lives."""
    _kept(follower, _followers)


def close_before(closer: Closer) -> None:
    """Have it close before every fork, in the parent, as long as it lives."""
    _kept(closer, _closers)


def count() -> int:
    """How many forks lead to this process from the one that was started."""
    return _count


def _kept(item: Any, known: weakref.WeakValueDictionary[int, Any]) -> Any:
    known[id(item)] = item
    return item


def _alive(known: weakref.WeakValueDictionary[int, Any]) -> list[Any]:
    return [item for item in (reference() for reference in known.valuerefs()) if item is not None]


def _before() -> None:
    end = time.monotonic() + LONGEST_S
    locks = _alive(_short)
    held, missed = _taken(locks)
    while missed is not None and time.monotonic() < end:
        for item in held:
            item.release()
        waited_for = [missed] if missed.acquire(timeout=max(0.0, end - time.monotonic())) else []
        held, missed = _taken(locks, waited_for)
    if missed is not None:
        held += [item for item in locks if all(item is not other for other in held) and item.acquire(blocking=False)]
    _of_thread.held = held
    for closer in _alive(_closers):
        try:
            closer.before_fork()
        except Exception:
            logger.warning("%s stays open across a fork", type(closer).__name__, exc_info=True)


def _taken(locks: Sequence[Any], held: Sequence[Any] = ()) -> tuple[list[Any], Any]:
    """Take locks without waiting: those that are held then, and the first one that another thread holds."""
    taken = list(held)
    for item in locks:
        if any(item is other for other in held):
            continue
        if not item.acquire(blocking=False):
            return taken, item
        taken.append(item)
    return taken, None


def _in_parent() -> None:
    for item in _of_thread.held:
        item.release()
    _of_thread.held = []


def _in_child() -> None:
    global _count
    _count += 1
    _in_parent()
    for item in (*_alive(_short), *_alive(_long)):
        if item.acquire(blocking=False):
            item.release()
        else:
            item._at_fork_reinit()
    for follower in _alive(_followers):
        try:
            follower.after_fork()
        except Exception:
            logger.warning("%s knows things of the parent process", type(follower).__name__, exc_info=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
