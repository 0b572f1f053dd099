"""Forks while other threads of the process hold locks, make programs or compare them: children answer all the same."""

from __future__ import annotations

import ast
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked import Elsewhere, ended, in_fork
from import_graph import sources

from mixbackend.backends.common import forks
from mixbackend.compile.making import claimed
from mixbackend.host.full_collections import full_collections_later
from mixbackend.select.live.overlaps import Overlaps
from mixbackend.storage.background_io import BackgroundQueue

LONGEST_S = 20.0
MAKERS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore"}
BY_THEMSELVES = {
    "backends/common/forks.py",
    # Where the package is not loaded yet, and below it: these see to forks by themselves.
    "mixbackend/host/full_collections.py",
    "contracts/op_lowering.py",
    "contracts/result_memory.py",
    # A condition on a lock of forks.
    "mixbackend/storage/background_io.py",
    "mixbackend/execute/bindings.py",
}
ON_GPUS = ("backends/tensorrt/", "contracts/torch_compat/late_kernels.py")
"""No child of a fork can use a GPU that its parent used."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")


def holding(lock: threading.Lock) -> Elsewhere:
    def hold(begun: threading.Event, over: threading.Event) -> None:
        with lock:
            begun.set()
            over.wait()

    return Elsewhere(hold)


def test_no_lock_of_ours_is_made_elsewhere() -> None:
    """A lock that another thread holds at a fork is held for ever in the child, unless ``forks`` knows it."""
    found = []
    for path in sources("mixbackend", "backends", "contracts", "partitioner"):
        name = str(path.relative_to(Path(__file__).parents[2]))
        if name not in BY_THEMSELVES and not name.startswith(ON_GPUS):
            found += [f"{name}:{line}" for line in locks_made(ast.parse(path.read_text()))]
    assert not found, "make it by mixbackend.backends.common.forks"


def locks_made(tree: ast.AST) -> Iterator[int]:
    """Lines that make a lock, or say how one is made."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "threading":
            yield from (node.lineno for alias in node.names if alias.name in MAKERS)
        made = node.func if isinstance(node, ast.Call) else node.value if isinstance(node, ast.keyword) else None
        if isinstance(made, ast.Attribute) and ast.unparse(made) in {f"threading.{name}" for name in MAKERS}:
            yield made.lineno


@pytest.mark.parametrize("make", [forks.lock, forks.reentrant_lock, forks.long_lock, forks.long_reentrant_lock])
def test_a_lock_is_free_in_the_child(make: Callable[[], threading.Lock]) -> None:
    lock = make()
    with holding(lock):
        begin = time.monotonic()
        assert in_fork(lambda: lock.acquire(timeout=1.0)) == 0
        assert time.monotonic() - begin < forks.LONGEST_S + 5.0
        assert not lock.acquire(blocking=False), "in the parent it is held as before"


def test_a_fork_waits_for_the_end_of_a_short_section() -> None:
    lock, pair = forks.lock(), [0, 0]

    def count(begun: threading.Event, over: threading.Event) -> None:
        while not over.is_set():
            with lock:
                pair[0] += 1
                begun.set()
                time.sleep(0.001)
                pair[1] += 1
            time.sleep(0.001)  # A thread that takes a lock again at once shuts all others out.

    with Elsewhere(count):
        assert [in_fork(lambda: pair[0] == pair[1]) for _ in range(20)] == [0] * 20


def test_a_fork_waits_for_no_two_locks_at_once() -> None:
    """Another thread takes them in the other order."""
    locks = [forks.lock(), forks.lock()]

    def both(begun: threading.Event, over: threading.Event) -> None:
        while not over.is_set():
            for first, second in (locks, locks[::-1]):
                with first, second:
                    begun.set()

    with Elsewhere(both):
        for _ in range(20):
            begin = time.monotonic()
            assert in_fork(lambda: all(lock.acquire(timeout=1.0) for lock in locks)) == 0
            assert time.monotonic() - begin < LONGEST_S / 2


def test_a_lock_of_the_thread_that_forks_stays_its_own() -> None:
    lock = forks.reentrant_lock()

    def other_takes_it() -> bool:
        taken: list[bool] = []
        thread = threading.Thread(target=lambda: taken.append(lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        return taken[0]

    with lock:
        child = os.fork()
        if not child:
            held = not other_takes_it()
            lock.release()
            os._exit(0 if held and other_takes_it() else 1)
    assert ended(child) == 0


def test_what_another_thread_makes_is_made_again_in_the_child() -> None:
    lock, table = forks.lock(), ["before"]

    def make(begun: threading.Event, over: threading.Event) -> None:
        with claimed(lock, table, 0):
            begun.set()
            over.wait()
            table[0] = "parent's"

    def again() -> bool:
        with claimed(lock, table, 0) as found:
            table[0] = f"child's, after {found}"
        return table == ["child's, after before"]

    with Elsewhere(make):
        assert in_fork(again) == 0
    assert table == ["parent's"]


def test_calls_of_other_threads_do_not_overlap_those_of_the_child() -> None:
    overlaps = Overlaps()
    overlaps.begin()
    assert in_fork(lambda: overlaps.end(overlaps.begin())) == 0
    assert not overlaps.end(overlaps.begin())


def test_the_child_waits_for_no_storage_of_its_parent() -> None:
    background, over = BackgroundQueue(), threading.Event()
    background.add("first", over.wait)
    background.add("second", over.wait)
    assert in_fork(lambda: background.flush(0.0) and background.add("own", lambda: None) and background.flush(5.0)) == 0
    assert not background.flush(0.0)
    over.set()
    assert background.flush(LONGEST_S)


def test_garbage_is_collected_in_the_child_of_a_process_that_compiles() -> None:
    before = gc.get_threshold()

    def compile_something(begun: threading.Event, over: threading.Event) -> None:
        with full_collections_later():
            begun.set()
            over.wait()

    with Elsewhere(compile_something):
        assert gc.get_threshold() != before
        assert in_fork(lambda: gc.get_threshold() == before) == 0
    assert gc.get_threshold() == before
