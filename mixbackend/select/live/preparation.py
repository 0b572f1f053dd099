"""Preparation: how a challenger becomes a program: prepared where that disturbs no call, then loaded between two calls.

Place: between ``live_calls``, which asks for challengers, and ``compile.challenger_build``, which builds them.
Invariants: ``ready`` takes microseconds and waits for nothing; only ``load`` takes time of the user's.
Units: seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mixbackend.execute.run_function import Run
from mixbackend.execute.state_restore import Changes
from mixbackend.select.live.challengers import Challenger


@dataclass(frozen=True)
class Contender:
    """A program that can run the entry's calls.

    Attributes:
        run: runs the graph; empties the list.
        changes: what that changes.
        release: called when nothing will run it any more.
        fault: says what went wrong in its calls though they were answered; empty if nothing did.
        elsewhere: see ``Selection.built``.
        apart: makes what runs it in rehearsals, by recordings of its own.
    """

    run: Run
    changes: Changes
    release: Callable[[], None] = lambda: None
    fault: Callable[[], str] = lambda: ""
    elsewhere: float = 1.0
    apart: Callable[[], Run] | None = None


class NotNowError(Exception):
    """A challenger cannot be had in this process, which says nothing of others; with the reason."""


class Preparation(Protocol):
    """Of one challenger."""

    @property
    def load_s(self) -> float:
        """What loading is expected to take, once it is ready."""
        ...

    def ready(self, calls: int, spent_s: float) -> bool:
        """Whether it can be loaded.

        Args:
            calls, spent_s: of the entry so far: what is prepared behind is paid by them.

        Raises:
            NotNowError: another process may have it.
            Exception: it cannot be prepared.
        """
        ...

    def load(self) -> Contender:
        """The program.

        Raises:
            Exception: it cannot be had.
        """
        ...


class Preparer(Protocol):
    """Prepares challengers of one entry."""

    def prepare(self, challenger: Challenger) -> Preparation:
        """Begin to prepare a challenger; takes a few milliseconds, to read settings that it needs."""
        ...
