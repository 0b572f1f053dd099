"""OpenMP runtimes of this process: which are loaded, and how their idle threads are kept from spinning and let again.

Place: below ``host.threads``, which decides when.
Input: the libraries mapped into the process. Output: ``Quiet`` objects, ended by the code that made them.

Both runtimes read their settings when they are loaded. Afterwards:

- GNU's (``libgomp``) spins only briefly while it manages more threads than there are cores. One more team that sleeps
  in a thread of its own makes that so, for as long as the thread lives.
- Intel's and LLVM's (``libiomp5``, ``libomp``) have a call for the calling thread's team.

Invariants: nothing of torch's settings changes: the idle team is made through the runtime itself. After a fork the
child has the count of threads but not the threads: it spins briefly, and ending the team there does nothing.
Non-goals: pausing the runtime between regions (``omp_pause_resource_all``): it waits for the threads that it ends,
milliseconds where cores are shared with other programs.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from mixbackend.host.thread_environment import Runtime

_LIBRARY = re.compile(r"(/\S*/lib(?:gomp|iomp5|omp)\b[^/\s]*\.so[^/\s]*)$")
_START_SECONDS = 10.0


class Quiet(Protocol):
    """One runtime with idle threads that do not spin."""

    @property
    def means(self) -> str:
        """How, in words."""
        ...

    def end(self) -> None:
        """Let them spin again. Never blocks."""
        ...


def loaded_runtimes() -> tuple[str, ...]:
    """Paths of the OpenMP runtimes mapped into this process, in order of their names; none where that is not known."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return ()
    found = (_LIBRARY.search(line) for line in lines)
    return tuple(sorted({match[1] for match in found if match}))


def runtime_of_torch(paths: Sequence[str]) -> str | None:
    """Which of the loaded runtimes torch's kernels run on: the only one, or the one that torch brought along."""
    own = [path for path in paths if Path(torch.__file__).parent in Path(path).parents]
    found = own if own else paths
    return found[0] if len(found) == 1 else None


def kind_of(path: str) -> Runtime:
    """Which runtime a library is."""
    return "gnu" if Path(path).name.startswith("libgomp") else "intel"


def keep_quiet(path: str) -> Quiet:
    """Keep the idle threads of one loaded runtime from spinning.

    Raises:
        OSError, AttributeError, RuntimeError: the library offers no way.
    """
    library = ctypes.CDLL(path)
    return IdleTeam(library) if kind_of(path) == "gnu" else _BlockTime(library)


class IdleTeam:
    """A team of GNU's runtime that was made once and sleeps, one thread larger than the number of cores."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.means = "a sleeping team"
        self._enter = library.GOMP_parallel
        self._enter.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        self._enter.restype = None
        # Any function will do as the team's work; one of the runtime itself needs no Python in its threads.
        self._work = ctypes.cast(library.omp_get_thread_num, ctypes.c_void_p)
        self._use_all = library.omp_set_dynamic
        self._size = max(library.omp_get_num_procs(), cores()) + 1
        self._over = threading.Event()
        started = threading.Event()
        self._thread = threading.Thread(target=self._sleep, args=(started,), name="mixbackend-idle-team", daemon=True)
        self._thread.start()
        if not started.wait(_START_SECONDS):
            raise RuntimeError("its team did not start")

    def end(self) -> None:
        """See ``Quiet``: the thread ends, and the runtime ends its team with it."""
        self._over.set()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _sleep(self, started: threading.Event) -> None:
        self._use_all(0)  # of this thread alone: the runtime may otherwise make the team smaller under load
        self._enter(self._work, None, self._size, 0)
        started.set()
        self._over.wait()


class _BlockTime:
    """Intel's and LLVM's runtime: a call, which holds for regions of the calling thread."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.means = "a block time of 0 ms"
        self._set = library.kmp_set_blocktime
        self._before = int(library.kmp_get_blocktime())
        self._set(0)

    def end(self) -> None:
        """See ``Quiet``."""
        self._set(self._before)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
