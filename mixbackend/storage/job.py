"""The job's store: what the ranks of one ``torch.distributed`` job agree on. First come, first served.

Place: beside the other rooms of storage; asked by code that decides something that all ranks must decide alike.
Input: a key, and plain data. Output: the plain data that stands under the key, and which rank wrote it.
Method: a cell of the default group's store is written once, by compare-and-set, so that every rank reads the same from
it, whenever it comes. A rank that is about to make a value claims the cell first. Other ranks look at it now and then,
until a value stands, the claimant gives up, or their patience ends; then they make one too, and give theirs up for one
that stands.
Keys hold the group: its name, the ranks that are in it, and which restart of an elastic job it is.
Invariants: no collective, so that ranks which never ask keep no other waiting; the store is not occupied by waiting,
as torch's own threads use it; nothing is unpickled. Without a group of several ranks nothing is imported or opened. In
the child of a fork the parent's connection is left alone.
Non-goals: whether a value can be believed: its reader holds it against what it has.
Units: seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from mixbackend.backends.common import forks
from mixbackend.contracts.torch_compat import default_store

FORMAT = 1
"""Of what stands in a cell; ranks of another version count as ranks that say nothing."""
MOST_BYTES = 8 << 20
"""Longer values are neither written nor read: about 100,000 nodes of a plan."""
FIRST_LOOK_S, LATER_LOOKS_S = 0.002, 0.05
"""Between looks at a cell; each is a question to the one process that has the store, from every rank that waits."""
_RESTART = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")


class JobStoreError(Exception):
    """The store does not answer, or what stands there cannot be read."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands in a cell.

    Attributes:
        value: plain data.
        rank: that wrote it.
    """

    value: Mapping[str, Any]
    rank: int


@dataclass(frozen=True)
class Job:
    """One rank's view of the job's store.

    Attributes:
        store: with the group's own keys.
        rank: of this process.
    """

    store: torch.distributed.Store
    rank: int

    def standing(self, key: str) -> Standing | None:
        """What stands under a key now.

        Raises:
            JobStoreError: see there.
        """
        with _told("reading"):
            text = self.store.get(key) if self.store.check([key]) else None
        return None if text is None else _read(key, text)

    def publish(self, key: str, value: Mapping[str, Any]) -> Standing:
        """Write a value, unless one stands: what stands then.

        Raises:
            JobStoreError: see there; or the value is too long.
        """
        text = json.dumps({"format": FORMAT, "key": key, "rank": self.rank, "value": value})
        if len(text) > MOST_BYTES:
            raise JobStoreError(f"{len(text)} bytes are more than ranks tell one another")
        with _told("writing"):
            found = self.store.compare_set(key, "", text)
        return _read(key, found)

    @contextmanager
    def turn(self, key: str, patience_s: float) -> Iterator[Turn]:
        """The time in which a value is made; gives the claim up at its end unless one was published.

        Args:
            key: of the cell.
            patience_s: so long another rank's claim is respected.

        Raises:
            JobStoreError: see there.
        """
        begin = time.monotonic()
        claimed = False
        found = self.standing(key)
        if found is None:
            with _told("claiming"):
                claimed = self.store.add(f"{key} claims", 1) == 1
            found = None if claimed else self._awaited(key, begin + patience_s)
        try:
            yield Turn(found, time.monotonic() - begin, claimed)
        finally:
            if claimed:
                with contextlib.suppress(JobStoreError), _told("writing"):
                    self.store.set(f"{key} over", "")

    def _awaited(self, key: str, end: float) -> Standing | None:
        pause = FIRST_LOOK_S
        while True:
            with _told("waiting"):
                over = self.store.check([f"{key} over"])  # first: what was published before stands by then
            found = self.standing(key)
            if found is not None or over or time.monotonic() + pause > end:
                return found
            time.sleep(pause)
            pause = min(2 * pause, LATER_LOOKS_S)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a rank finds when it wants to make a value.

    Attributes:
        found: what another rank made; ``None`` where this one is to make it.
        waited_s: for that.
        claimed: whether others wait for this rank.
    """

    found: Standing | None
    waited_s: float
    claimed: bool


def job_here() -> Job | None:
    """The job that this process is a rank of; ``None`` where it has no other ranks, or its parent has the store."""
    store = default_store()
    if store is None or torch.distributed.get_world_size() < 2 or store is _inherited.store():
        return None
    name = getattr(torch.distributed.group.WORLD, "group_name", "")
    facts = [name, torch.distributed.get_world_size(), *(os.environ.get(item, "") for item in _RESTART)]
    return Job(torch.distributed.PrefixStore(f"mixbackend {json.dumps(facts)}", store), torch.distributed.get_rank())


class _Inherited:
    """The store that the parent of a fork had: one connection cannot serve both."""

    def __init__(self) -> None:
        self.store: Callable[[], object] = lambda: None
        forks.follow(self)

    def after_fork(self) -> None:
        """This is the child."""
        store = default_store()
        if store is not None:
            self.store = weakref.ref(store)


_inherited = _Inherited()


@contextmanager
def _told(doing: str) -> Iterator[None]:
    """Errors of a store, each kind of which has its own, as ours."""
    try:
        yield
    except Exception as error:
        raise JobStoreError(f"{doing} failed: {type(error).__name__}: {error}") from error


def _read(key: str, text: bytes) -> Standing:
    if len(text) > MOST_BYTES:
        raise JobStoreError(f"{len(text)} bytes stand there, more than ranks tell one another")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JobStoreError(f"what stands there is no JSON: {error}") from error
    told = found if isinstance(found, dict) else {}
    value, rank = told.get("value"), told.get("rank")
    if (told.get("format"), told.get("key")) != (FORMAT, key) or not isinstance(value, dict) or type(rank) is not int:
        raise JobStoreError(f"what stands there is no value of format {FORMAT} for {key}")
    return Standing(value, rank)
