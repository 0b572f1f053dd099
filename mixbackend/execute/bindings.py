"""Binding compiled regions to the values of their constants: several at once, and through the artifact store.

Place: between ``compile.build``, which knows the values, and the code of backends. Input: executors and values; a
region of a backend that prepares bindings. Output: bound executors; ``BoundRun``. Most backends bind in the time of
copying weights. Where it is a compilation, the code is stored under the region's key and the digest of the values, so
that it is made once for all plans, processes and machines with one cache. After a change nothing waits for that: eager
runs the region until the code is there.
Invariants: what cannot be loaded is removed and made anew. Values are read on the stream of the call that asks, and
before the call goes on.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from mixbackend.backends.common import forks
from mixbackend.contracts import Binding, BoundRun
from mixbackend.contracts.region import PrepareBindingFunction
from mixbackend.execute.region_executor import RegionExecutor
from mixbackend.storage import ArtifactStore, Label

MOST_AT_ONCE = 8
"""So many regions are bound side by side; a backend may take fewer."""
MOST_IN_BACKGROUND = 2
"""So many pieces of code are made beside running models: those that wait longer may be wanted no more."""


@dataclass(eq=False)
class BackgroundRebind:
    """One round of making code for changed values in the background, instead of at once.

    Attributes:
        seconds: what each piece of code took is appended to it, in the thread that made it.
        wanted: whether calls still wait for this code; set to false by the caller once the values changed again.
        ready: whether a piece is there, or cannot be made; the next call binds again then.
    """

    seconds: deque[float]
    wanted: bool = True
    ready: bool = False

    def __post_init__(self) -> None:
        forks.follow(self)

    def after_fork(self) -> None:
        """In the child of a fork no thread makes it: the next call asks for it again."""
        self.ready = True


class _Turns:
    """Of the threads that make code beside running models."""

    def __init__(self) -> None:
        self.after_fork()
        forks.follow(self)

    def after_fork(self) -> None:
        """In the child of a fork: none of these threads is here."""
        self.free = threading.Semaphore(MOST_IN_BACKGROUND)


_turns = _Turns()


class StoredBinder:
    """A ``BindFunction`` that looks into the store first.

    Args:
        prepare: of the compiled region.
        store: where code lies.
        key: its name there, of the values' digest.
        label: which backend made it.
    """

    def __init__(
        self, prepare: PrepareBindingFunction, store: ArtifactStore, key: Callable[[str], str], label: Label
    ) -> None:
        self._prepare = prepare
        self._store = store
        self._key = key
        self._label = label
        self._lock = forks.lock()
        self._making: dict[str, threading.Lock] = {}
        self._made: dict[str, tuple[bytes | Exception, BackgroundRebind]] = {}

    def __call__(self, constants: Sequence[torch.Tensor | None]) -> BoundRun:
        """Code for these values."""
        binding = self._prepare(constants)
        key = self._key(binding.digest)
        with self._one_at_a_time(key):
            made, _ = self._made.pop(key, (None, None))
            if isinstance(made, Exception):
                raise made
            stored = made or self._store.get(key)
            if stored is not None:
                try:
                    return _noted(binding.load(stored), "taken from the cache")
                except Exception as error:
                    self._store.discard(key, f"backend {self._label.backend!r} cannot load it: {error}")
            code = binding.build()
            self._store.put(key, code, self._label)
            return binding.load(code)

    def in_background(self, constants: Sequence[torch.Tensor | None], rebind: BackgroundRebind) -> bool:
        """Make code for these values in a thread, unless it is there; whether it is being made now."""
        binding = self._prepare(constants)
        key = self._key(binding.digest)
        if self._is_there(key):
            return False

        def work() -> None:
            with _turns.free, self._one_at_a_time(key):
                begin = time.monotonic()
                if not rebind.wanted:
                    return
                if not self._is_there(key):
                    self._make(key, binding, rebind)
                rebind.seconds.append(time.monotonic() - begin)
                rebind.ready = True

        # It is not waited for when the program ends.
        threading.Thread(target=work, name="mixbackend-rebind", daemon=True).start()
        return True

    def _is_there(self, key: str) -> bool:
        return key in self._made or self._store.get(key) is not None

    def _make(self, key: str, binding: Binding, rebind: BackgroundRebind) -> None:
        """Build, and keep what the store does not: a failure is raised when it is asked for."""
        made: bytes | Exception
        try:
            made = binding.build()
            if self._store.put(key, made, self._label):
                return
        except Exception as error:
            made = error
        # What is not waited for any more is forgotten.
        self._made = {name: item for name, item in self._made.items() if item[1].wanted}
        self._made[key] = (made, rebind)

    def _one_at_a_time(self, key: str) -> threading.Lock:
        """Layers that share code and values wait for one another instead of making the same twice."""
        with self._lock:
            return self._making.setdefault(key, forks.long_lock())


@dataclass(frozen=True)
class BindingJob:
    """An executor and the values that it is to be bound to, one entry per input."""

    executor: RegionExecutor
    constants: Sequence[torch.Tensor | None]

    def begun_in_background(self, rebind: BackgroundRebind) -> bool:
        """Whether its code is being made in a thread now; eager runs the region until it is bound again."""
        bind = self.executor.compiled.bind
        if not isinstance(bind, StoredBinder) or not bind.in_background(self.constants, rebind):
            return False
        self.executor.run_eager()
        return True

    @property
    def takes_long(self) -> bool:
        """Whether it is worth a thread of its own, and may have one."""
        return self.executor.compiled.prepare_binding is not None and self.executor.backend.traits().concurrent_compile


def bind_all(jobs: Sequence[BindingJob]) -> Iterator[Exception | None]:
    """Bind executors, in their order; says for each what went wrong. Those that take long are bound side by side."""
    long = [place for place, job in enumerate(jobs) if job.takes_long]
    stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None

    def bind(job: BindingJob) -> Exception | None:
        try:
            job.executor.bind(job.constants)
        except Exception as error:
            return error
        return None

    def bind_apart(job: BindingJob) -> Exception | None:
        # Streams and gradients are a thread's own.
        with torch.no_grad(), nullcontext() if stream is None else torch.cuda.stream(stream):
            return bind(job)

    if len(long) < 2:
        yield from map(bind, jobs)
        return
    with ThreadPoolExecutor(min(len(long), MOST_AT_ONCE), "mixbackend-bind") as pool:
        ahead: dict[int, Any] = {place: pool.submit(bind_apart, jobs[place]) for place in long}
        try:
            for place, job in enumerate(jobs):
                yield ahead[place].result() if place in ahead else bind(job)
        finally:
            # A caller that stops here, since one failed, places regions anew.
            for future in ahead.values():
                future.cancel()


def _noted(bound: BoundRun, note: str) -> BoundRun:
    return replace(bound, notes=(*bound.notes, note))
