"""Holds the workers behind one process to what they may use: ``python -m mixbackend.host.behind_governor``.

Place: a small process between the user's and the workers, so that no thread of the user's process has to wake up for
them. ``background`` starts it and talks to it; ``behind_process`` is one worker.
Input: lines of JSON: first ``{"limits": {...}, "lock": path}``, then orders (``Order``, by field) and
``{"allow": entry, "seconds": ...}``, or other limits. Output: lines of JSON: ``{"group": number}`` for each worker,
``{"state": text}`` where nothing can be done at present, ``{"used_s": seconds}`` as they grow, and for every job an
answer with ``job`` and ``status``.
Invariants: lowest priority, as its workers. When the input ends or the process has another parent, every worker and
what it started is killed. Workers run only while this process is the one builder of the cache folder and while
``behind_budget`` allows it; otherwise they are stopped.
Non-goals: knowing what the jobs are.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mixbackend.host.behind_budget import Account, Limits
from mixbackend.host.behind_orders import (
    ELSEWHERE,
    LITTLE_MEMORY,
    UNPAID,
    Answer,
    AnyLock,
    AnyWorker,
    Order,
)
from mixbackend.host.behind_process import WorkerProcess
from mixbackend.host.behind_worker import take_low_priority
from mixbackend.host.builder_lock import BuilderLock
from mixbackend.host.free_memory import free_bytes
from mixbackend.host.process_tree import Usage, own_seconds

LONGEST_JOB_S = 600.0
"""While it is not stopped."""
_LOOK_EVERY_S, _LOOK_IDLE_S = 0.05, 1.0
_KEEP_WORKER_S = 10.0
_TELL_EVERY_S = 0.25


@dataclass
class _Running:
    worker: AnyWorker
    order: Order | None = None
    seen_s: float = 0.0
    stopped: bool = False
    ran_s: float = 0.0
    since: float = 0.0


class Governor:
    """See the module's docstring; what it acts through is handed in, so that tests simulate it.

    Args:
        limits: of this process.
        lock: of the cache folder.
        start: starts a worker that may hold so many bytes, and compile so many kernels at once.
        free: memory that is free.
        busy: processor seconds that the user's process has used; ``None`` where the system does not tell.
        clock: seconds.
    """

    def __init__(
        self,
        limits: Limits,
        lock: AnyLock,
        start: Callable[[int, int], AnyWorker],
        free: Callable[[], int] = free_bytes,
        busy: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock, self._start, self._free, self._busy, self._clock = lock, start, free, busy, clock
        self._busy_s = busy()
        self._account = Account(limits, clock())
        self._waiting: deque[Order] = deque()
        self._running: list[_Running] = []
        self._each_bytes = 0
        self._told, self._told_s = "", 0.0

    @property
    def busy(self) -> bool:
        """Whether there is anything to look after soon."""
        return any(item.order is not None for item in self._running)

    def hear(self, message: dict[str, Any]) -> None:
        """Take an order, or what an entry may use."""
        if "allow" in message:
            self._account.allow(message["allow"], message["seconds"])
        elif "limits" in message:
            self._account.limits = Limits(**message["limits"])
        else:
            self._waiting.append(Order(**message))

    def look(self) -> list[Answer]:
        """Count, answer, begin, stop and resume: what is to be told."""
        now, told = self._clock(), list[Answer]()
        self._account.pass_until(now, self._busy_since())
        for item in list(self._running):
            told += self._count(item, now)
        blocked = self._begin(now, told)
        for item in self._running:
            self._hold(item)
        if not self._waiting and not self.busy:
            self._lock.release()
        state = blocked or self._unpaid()
        if state != self._told:
            self._told = state
            told.append({"state": state})
        if self._account.used_s - self._told_s > _TELL_EVERY_S:
            self._told_s = self._account.used_s
            told.append({"used_s": self._told_s})
        return told

    def end(self) -> None:
        """End every worker."""
        for item in self._running:
            item.worker.end()
        self._running.clear()

    def _busy_since(self) -> float | None:
        """What the user's process has used since this was last asked."""
        before, self._busy_s = self._busy_s, self._busy()
        return None if before is None or self._busy_s is None else self._busy_s - before

    def _count(self, item: _Running, now: float) -> list[Answer]:
        """What a worker used since it was last looked at; its answer, if there is one."""
        usage = item.worker.usage()
        elapsed, item.since = now - item.since, now
        if item.order is None:
            return self._retire(item, elapsed)
        item.ran_s += 0.0 if item.stopped else elapsed
        # Where the system does not tell, a worker that was not stopped used all of the time.
        spent = max(0.0, usage.seconds - item.seen_s) if usage.told else (0.0 if item.stopped else elapsed)
        item.seen_s = max(item.seen_s, usage.seconds)
        self._account.use(item.order.entry, spent)
        answer = item.worker.answer() or self._over(item, usage)
        if answer is None:
            return []
        answer = {**answer, "job": item.order.job, "used_s": self._account.used_s}
        item.order, item.ran_s = None, 0.0
        if answer["status"] not in ("pass", "failed"):
            item.worker.end()
            self._running.remove(item)
        return [answer]

    def _over(self, item: _Running, usage: Usage) -> Answer | None:
        """Why a worker is ended."""
        if usage.bytes > self._each_bytes:
            return {"status": "out_of_memory", "detail": f"more than {self._each_bytes >> 20} MiB"}
        if item.ran_s > LONGEST_JOB_S:
            return {"status": "timeout", "detail": f"it ran for more than {LONGEST_JOB_S:g} s"}
        if self._account.spent:
            return {"status": "budget", "detail": f"all {self._account.limits.budget_s:g} processor seconds are used"}
        return None

    def _retire(self, item: _Running, elapsed: float) -> list[Answer]:
        """A worker without work ends after a while."""
        item.ran_s += elapsed
        if item.ran_s > _KEEP_WORKER_S or item.worker.answer() is not None:
            item.worker.end()
            self._running.remove(item)
        return []

    def _begin(self, now: float, told: list[Answer]) -> str:
        """Give what waits to workers, as far as there may be any; why nothing can begin."""
        while self._waiting:
            taken = self._lock.take()
            if taken == "elsewhere":
                return ELSEWHERE
            refusal = "the cache folder cannot be locked" if taken == "impossible" else ""
            if self._account.spent or refusal:
                detail = refusal or f"all {self._account.limits.budget_s:g} processor seconds are used"
                status = "refused" if refusal else "budget"
                told.append({"job": self._waiting.popleft().job, "status": status, "detail": detail})
                continue
            item = next((item for item in self._running if item.order is None), None)
            if item is None and len(self._running) >= self._account.limits.workers:
                return ""
            item = item or self._new_worker(told)
            if item is None:
                return LITTLE_MEMORY
            item.order, item.ran_s, item.since = self._waiting.popleft(), 0.0, now
            self._resume(item)
            item.worker.give(item.order.work, item.order.data)
        return ""

    def _new_worker(self, told: list[Answer]) -> _Running | None:
        """``None`` where there is no memory for one."""
        each = self._account.limits.worker_bytes(self._free())
        if not each:
            return None
        self._each_bytes = each
        jobs = len(self._waiting) + sum(item.order is not None for item in self._running)
        item = _Running(self._start(each, self._account.limits.compilers(each, jobs)), since=self._clock())
        self._running.append(item)
        told.append({"group": item.worker.group})
        return item

    def _unpaid(self) -> str:
        orders = [item.order for item in self._running if item.order is not None]
        return UNPAID if orders and not any(self._account.paid(order.entry) for order in orders) else ""

    def _hold(self, item: _Running) -> None:
        """Stop a worker that may not go on, and let the others."""
        if item.order is None or self._account.may_go_on(item.order.entry):
            self._resume(item)
        elif not item.stopped:
            item.worker.pause()
            item.stopped = True

    def _resume(self, item: _Running) -> None:
        if item.stopped:
            item.worker.resume()
            item.stopped = False


def main() -> None:
    """Govern until the asking process is gone; see the module's docstring."""
    parent = os.getppid()
    take_low_priority()
    rest = b""
    governor: Governor | None = None
    try:
        while os.getppid() == parent:
            wait = _LOOK_EVERY_S if governor is not None and governor.busy else _LOOK_IDLE_S
            if select.select([0], [], [], wait)[0]:
                data = os.read(0, 1 << 16)
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    if governor is None:
                        limits, lock = Limits(**message["limits"]), BuilderLock(Path(message["lock"]))
                        governor = Governor(limits, lock, _start, busy=partial(own_seconds, parent))
                    else:
                        governor.hear(message)
            if governor is not None:
                for answer in governor.look():
                    sys.stdout.write(json.dumps(answer) + "\n")
                sys.stdout.flush()
    except BrokenPipeError:
        return
    finally:
        if governor is not None:
            governor.end()


def _start(memory_bytes: int, compilers: int) -> AnyWorker:
    return WorkerProcess(memory_bytes, compilers)


if __name__ == "__main__":
    main()
