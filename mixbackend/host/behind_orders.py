"""What a governor is told to do, what it does it with, and the states it tells.

Place: under ``behind_governor``, which acts through these protocols, so that tests simulate processes and locks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mixbackend.host.builder_lock import Taken
from mixbackend.host.process_tree import Usage

Answer = dict[str, Any]

ELSEWHERE = "another process builds for this cache folder"
LITTLE_MEMORY = "too little memory is free"
UNPAID = "calls have to pay for more"
"""States in which nothing is done at present."""


class AnyWorker(Protocol):
    """What does a job, as far as it is seen here."""

    group: int

    def give(self, work: str, data: Mapping[str, Any]) -> None:
        """Begin a job."""
        ...

    def answer(self) -> Answer | None:
        """What came of it, ``None`` while it goes on; a death is an answer."""
        ...

    def usage(self) -> Usage:
        """So far."""
        ...

    def pause(self) -> None:
        """Use no processor until ``resume``."""
        ...

    def resume(self) -> None:
        """Go on."""
        ...

    def end(self) -> None:
        """With everything that it started."""
        ...


class AnyLock(Protocol):
    """As ``BuilderLock``."""

    def take(self) -> Taken:
        """Become the builder."""
        ...

    def release(self) -> None:
        """Let others build."""
        ...


@dataclass(frozen=True, slots=True)
class Order:
    """A job as the governor knows it.

    Attributes:
        job: its number.
        entry: the entry that pays for it with its calls.
        work, data: what is called, and with what.
    """

    job: int
    entry: str
    work: str
    data: Mapping[str, Any]
