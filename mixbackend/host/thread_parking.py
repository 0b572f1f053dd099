"""Torch's idle threads are parked while a region runs on another pool, and wait as they always do otherwise.

Place: below ``host.threads``, which decides where; around the run functions of ``execute.region_executor``.
Input: the OpenMP runtime that torch runs on (GNU's), the code of a region. Output: the same code, with torch's threads
asleep meanwhile.
Method: the calling thread begins a parallel region. The other members wait for a semaphore of the C library. The
calling thread runs the code, lets them go and ends the region. Beginning costs two microseconds; ending costs the
waking of a thread, some twenty.
Why: where torch's threads sleep all the time, each of torch's kernels wakes them anew, which was measured as half as
much again for a backward of hundreds of kernels. Where they spin, they take the cores from the other pool.
Invariants: a team is never smaller than torch's own: otherwise threads of torch's would end; a caller inside a
parallel region, or with one thread, runs the code as it is. Threads of other callers are left alone. Torch's kernels
inside the code run on the calling thread alone. After a fork nothing is done: the child has none of the threads.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from mixbackend.contracts.threads import thread_policy

Code = Callable[[Sequence[Any]], Sequence[Any]]

_SEMAPHORE_BYTES = 64
"""At least what a ``sem_t`` takes."""


class ThreadParking:
    """Parks torch's threads while others work; see the module's docstring.

    Args:
        path: of the runtime's library.

    Raises:
        OSError, AttributeError: the library or the C library lacks what it takes.
    """

    means = "a region of torch's own"

    def __init__(self, path: str) -> None:
        runtime, system = ctypes.CDLL(path), ctypes.CDLL(None)
        self._inside = runtime.omp_in_parallel
        self._begin = runtime.GOMP_parallel_start
        self._begin.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
        self._begin.restype = None
        self._end = runtime.GOMP_parallel_end
        self._end.restype = None
        self._set = system.sem_init
        self._set.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
        self._let_go = system.sem_post
        self._let_go.argtypes = (ctypes.c_void_p,)
        # Native code that takes one pointer and waits, as a member of a team is called.
        self._wait = ctypes.cast(system.sem_wait, ctypes.c_void_p)
        self._process = os.getpid()
        self._mine = threading.local()

    def around(self, code: Code) -> Code:
        """The same code, with torch's threads parked during its calls."""

        def parked(inputs: Sequence[Any]) -> Sequence[Any]:
            others = thread_policy().threads - 1
            if others < 1 or os.getpid() != self._process or self._inside():
                return code(inputs)
            semaphore = self._semaphore()
            # A thread that a signal woke early has left the count of the last time behind.
            self._set(semaphore, 0, 0)
            self._begin(self._wait, semaphore, others + 1)
            try:
                return code(inputs)
            finally:
                for _ in range(others):
                    self._let_go(semaphore)
                self._end()

        return parked

    def _semaphore(self) -> int:
        """Address of the calling thread's own."""
        memory = getattr(self._mine, "memory", None)
        if memory is None:
            memory = self._mine.memory = ctypes.create_string_buffer(_SEMAPHORE_BYTES)
        return ctypes.addressof(memory)
