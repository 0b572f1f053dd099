"""One policy for the threads of all pools of this process: no pool spins while another works.

Place: told by compile caches which pools their regions run on, asked by executors how to call a region; acts on torch's
own pool, the one that spins.
Input: names of pools (``Traits.thread_pool``). Output: a ``Sharing`` that says what was done; it becomes an event.

- Size: every pool gets torch's number of threads (``contracts.threads``), so ``OMP_NUM_THREADS`` and
  ``torch.set_num_threads`` rule them all; fingerprints contain the number.
- Spinning: backends' own pools do not spin after a region (the contract's rule). Torch's pool does, by default of its
  OpenMP runtime, for milliseconds. In a process that loaded torch with nothing set, torch's threads are parked while a
  region runs on another pool (``thread_parking``) and spin before and after it. Where that cannot be had (other
  runtimes), and where no region is in sight (blocks that are timed), they are kept from spinning altogether as long as
  something runs on another pool.

Invariants: nothing happens in a process that runs all regions on torch's pool, where spinning is what makes kernels
start quickly; nor if the user decided (environment); nor if all pools together have cores enough. What was done is
undone when the last owner is gone. After a fork, the child keeps what it inherited.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from mixbackend.backends.common import forks
from mixbackend.contracts.threads import TORCH_POOL, thread_policy
from mixbackend.host.openmp import Quiet, cores, keep_quiet, kind_of, loaded_runtimes, runtime_of_torch
from mixbackend.host.process_facts import on_reset
from mixbackend.host.thread_environment import decided_by_user
from mixbackend.host.thread_parking import Code, ThreadParking

Outcome = Literal["alone", "environment", "enough cores", "parked", "quiet", "unknown runtime"]


@dataclass(frozen=True, slots=True)
class Sharing:
    """What the policy did for a set of pools.

    Attributes:
        pools: their names, torch's included, in order.
        threads: of each.
        outcome: ``alone`` (torch's pool only), ``environment`` (decided there), ``enough cores`` (for all pools at
            once), ``parked`` (torch's pool sleeps during regions of others), ``quiet`` (it does not spin any more),
            ``unknown runtime`` (it could not be stopped).
        detail: in words.
    """

    pools: tuple[str, ...]
    threads: int
    outcome: Outcome
    detail: str

    def __str__(self) -> str:
        return f"{self.threads} threads each for the pools {', '.join(self.pools)}: {self.detail}"


class ThreadSharing:
    """The policy object; a process has one, ``sharing``.

    Args:
        runtimes: finds the OpenMP runtimes of the process.
        quieten: keeps one of them from spinning.
        park: makes the threads of torch's own sleep while code runs.
    """

    def __init__(
        self,
        runtimes: Callable[[], Sequence[str]] = loaded_runtimes,
        quieten: Callable[[str], Quiet] = keep_quiet,
        park: Callable[[str], ThreadParking] = ThreadParking,
    ) -> None:
        self._means = self._usual_means = (runtimes, quieten, park)
        self._found: tuple[ThreadParking | None] | None = None
        # Reentrant: an owner may be collected, and so released, by the very thread that holds the lock.
        self._lock = forks.reentrant_lock()
        self._owners: set[int] = set()
        self._quiet: list[Quiet] = []
        self._outcome: tuple[Outcome, str] | None = None

    def act_through(
        self,
        runtimes: Callable[[], Sequence[str]],
        quieten: Callable[[str], Quiet],
        park: Callable[[str], ThreadParking],
    ) -> None:
        """Act through other means, until ``forget``: tests have none of the runtimes that they tell of."""
        self.forget()
        self._means = (runtimes, quieten, park)

    def forget(self) -> None:
        """As if it had not been asked: what was done is undone, owners and runtimes are not known any more."""
        with self._lock:
            self._owners.clear()
            self._end()
            self._found = None
            self._means = self._usual_means

    @property
    def active(self) -> bool:
        """Whether torch's pool is being kept from spinning by this object."""
        return bool(self._quiet)

    def use(self, owner: object, pools: Iterable[str], *, parked: bool = False) -> Sharing:
        """Say that an object's code runs on these pools, until it is collected.

        Args:
            owner: weakly referenced; asking again for the same owner adds pools and takes none away.
            pools: names; torch's own is always there, since the user's code around the regions runs on it.
            parked: whether all code on other pools is called as ``parked`` gives it.
        """
        names = tuple(sorted({TORCH_POOL, *pools}))
        threads = thread_policy().threads
        if len(names) == 1:
            return Sharing(names, threads, "alone", "there is only torch's pool, which waits as it always does")
        if not _crowded(len(names)):
            return Sharing(names, threads, "enough cores", "all of them have cores of their own")
        parking = self._parking() if parked else None
        if parking is not None:
            detail = f"{parking.means} lets torch's threads sleep while a region runs on another pool"
            return Sharing(names, threads, "parked", detail)
        outcome, detail = self._hold(owner)
        return Sharing(names, threads, outcome, detail)

    def parked(self, pool: str, code: Code) -> Code:
        """Code of a region on a pool as it is to be called: torch's threads are parked meanwhile, where they can be."""
        parking = self._parking() if pool != TORCH_POOL and _crowded(2) else None
        return code if parking is None else parking.around(code)

    @contextmanager
    def during(self, pools: Iterable[str]) -> Iterator[Sharing]:
        """Say that these pools are used inside the block, so that what is timed there waits as it will in a model."""
        block = _Block()
        yield self.use(block, pools)
        del block

    def _parking(self) -> ThreadParking | None:
        """How torch's threads are parked; ``None`` if that is not known, or if the user decided how they wait."""
        with self._lock:
            if self._found is None:
                self._found = (self._find_parking(),)
            return self._found[0]

    def _find_parking(self) -> ThreadParking | None:
        runtimes, _, park = self._means
        path = runtime_of_torch(runtimes())
        if path is None or kind_of(path) != "gnu" or decided_by_user("gnu", os.environ):
            return None
        try:
            return park(path)
        except (OSError, AttributeError):
            return None

    def _hold(self, owner: object) -> tuple[Outcome, str]:
        with self._lock:
            key = id(owner)
            if key not in self._owners:
                self._owners.add(key)
                weakref.finalize(owner, self._release, key).atexit = False
            if self._outcome is None:
                self._outcome = self._start()
            return self._outcome

    def _start(self) -> tuple[Outcome, str]:
        done: list[str] = []
        decided: list[str] = []
        problems: list[str] = []
        runtimes, quieten, _ = self._means
        for path in runtimes():
            name = os.path.basename(path)
            decision = decided_by_user(kind_of(path), os.environ)
            if decision:
                decided.append(f"{decision} decides how idle threads of {name} wait")
                continue
            try:
                quiet = quieten(path)
            except (OSError, AttributeError, RuntimeError) as error:
                problems.append(f"{name}: {error}")
                continue
            self._quiet.append(quiet)
            done.append(f"{quiet.means} keeps {name} from spinning")
        if done:
            return "quiet", "; ".join(done)
        if decided and not problems:
            return "environment", "; ".join(decided)
        why = "; ".join(problems) or "no OpenMP runtime that is known here is loaded"
        return (
            "unknown runtime",
            f"torch's idle threads may spin while others work ({why}); OMP_WAIT_POLICY=passive helps",
        )

    def _release(self, key: int) -> None:
        with self._lock:
            self._owners.discard(key)
            if self._owners:
                return
            self._end()

    def _end(self) -> None:
        for quiet in self._quiet:
            quiet.end()
        self._quiet.clear()
        self._outcome = None

    def after_fork(self) -> None:
        """In a child process: it has none of the threads, but the runtime counts them; nothing to end or start."""
        if self._quiet:
            self._quiet = [_Inherited()]


def _crowded(pools: int) -> bool:
    """Whether so many pools have not cores enough for all at once; the calling thread works in every pool."""
    return 1 + (thread_policy().threads - 1) * pools > cores()


class _Block:
    """Owner of what is used inside a ``with`` block."""


class _Inherited:
    means = "what the parent process did"

    def end(self) -> None:
        """The count of threads that was inherited cannot be undone."""


sharing = ThreadSharing()
"""Of this process."""

on_reset(sharing.forget)

forks.follow(sharing)
