"""Making: a cell of a table is filled by one thread; others that need it wait for that thread, and for no other.

Place: under ``compile.executable``, ``compile.sized_graph`` and ``compile.weight_bindings``; it serves their tables.
Input: a table and the lock of its writes. Output: a claim on one of its cells.
Invariants: the lock is held while a cell is looked at or written, never while its value is made. However making ends,
the cell holds a value or what it held before, and those that wait look again. A thread never waits for itself: what is
asked for while it is made, by the very thread that makes it, is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Generic, Literal, Protocol, TypeVar

from mixbackend.backends.common import forks

Key = TypeVar("Key", contravariant=True)
Value = TypeVar("Value")


class ReenteredError(Exception):
    """What is asked for is being made by the thread that asks."""


class Making(Future[None], Generic[Value]):
    """Stands in a cell while a thread makes its value; false, as an empty cell is.

    Attributes:
        before: what the cell held, which may run meanwhile; ``None`` if nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before: Value | None = None
        self._maker, self._forks = threading.get_ident(), forks.count()

    def __bool__(self) -> Literal[False]:
        return False

    @property
    def over(self) -> bool:
        """Whether its maker has ended, or is not in this process: what it began before a fork is made again."""
        return self._forks != forks.count() or self.done()

    def wait(self) -> None:
        """Until the maker has ended, with or without a value.

        Raises:
            ReenteredError: this thread is the maker.
        """
        if self.over:
            return
        if self._maker == threading.get_ident():
            raise ReenteredError
        self.result()


class Table(Protocol[Key]):
    """A list or a dictionary; a cell that is missing is as good as one with ``None``."""

    def __getitem__(self, key: Key, /) -> Any: ...

    def __setitem__(self, key: Key, value: Any, /) -> None: ...


def held(cell: Value | Making[Value] | None) -> Value | None:
    """What a cell holds, or held before a thread began to make another value."""
    return cell.before if isinstance(cell, Making) else cell


@contextmanager
def claimed(lock: threading.Lock, table: Table[Key], key: Key) -> Iterator[Any]:
    """Claim a cell, once no other thread fills it; gives what the cell holds then.

    The thread that was waited for may have filled it, so that the block looks first. The block puts the value in; where
    it does not, however it ends, the cell holds what it held before.

    Raises:
        ReenteredError: this thread fills it already.
    """
    making: Making[Any] = Making()
    try:
        while (other := _claim(lock, table, key, making)) is not None:
            other.wait()
        yield making.before
    finally:
        try:
            with lock:
                if _cell(table, key) is making:
                    table[key] = making.before
        finally:
            making.set_result(None)


def _claim(lock: threading.Lock, table: Table[Key], key: Key, making: Making[Any]) -> Making[Any] | None:
    """Claim a cell; if that is not to be had, what stands in it."""
    with lock:
        found = _cell(table, key)
        # One that has ended and still stands there was interrupted while it was taken away.
        if isinstance(found, Making) and not found.over:
            return found
        making.before = held(found)
        table[key] = making
        return None


def _cell(table: Table[Key], key: Key) -> Any:
    try:
        return table[key]
    except KeyError:
        return None
