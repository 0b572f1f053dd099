"""For all tests: no probing (priors instead), caches of the test run alone, what tests with and without a GPU share.

``pytest -n N`` runs N tests at once. What cannot be right beside others, because it times, is marked ``alone``: it
waits until the others are done, and they for it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiers import pytest_addoption, pytest_collection_modifyitems, pytest_configure
from warm_processes import WarmProcesses

from mixbackend.benchmarks.idle_threads import make_threads_sleep

__all__ = ["pytest_addoption", "pytest_collection_modifyitems", "pytest_configure"]

if "PYTEST_XDIST_WORKER" in os.environ:
    # Before torch is imported: threads that wait in loops would take the cores from the other worker's.
    make_threads_sleep(os.environ)


@pytest.fixture(autouse=True, scope="session")
def _isolated_machine_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Subprocesses of tests inherit both."""
    # Torch comes with it, and is not to be loaded before it is decided how threads wait.
    from mixbackend.cost.switches import SWITCH

    folder: Path = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    os.environ.setdefault(SWITCH, "0")
    os.environ["XDG_CACHE_HOME"] = str(folder)


@pytest.fixture(autouse=True)
def _no_traces_of_torch(_isolated_machine_state: None) -> None:
    """pytest listens to every logger that does not propagate, before the first test and in each, and for whoever
    listens to this one torch writes down all it does, with stacks, and we plans and reports: a twentieth of the time of
    tests that trace. Tests that set torch's logs make it such a logger again."""
    log = logging.getLogger("torch.__trace")
    log.propagate = True
    log.handlers.clear()


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    """Every test finds Dynamo as a new process does. All models of a process share the entries of torch's own functions
    (the wrapper around a ``Sequential``): those of other tests are recompilations in a report, and at eight of them
    torch runs what follows in eager, without a plan."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmProcesses]:
    """Starts processes that have torch and mixbackend loaded."""
    processes = WarmProcesses()
    yield processes
    processes.close()


@pytest.fixture(autouse=True)
def _turn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests of all workers hold one lock together, and those that are marked ``alone`` hold it alone."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    mode = fcntl.LOCK_EX if request.node.get_closest_marker("alone") else fcntl.LOCK_SH
    shared = tmp_path_factory.getbasetemp().parent
    with (shared / "turn").open("a") as turn, (shared / "door").open("a") as door:
        # Whoever waits for the others stands in the door, so that nobody else begins meanwhile.
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(turn, mode)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Said, because closing is not enough where a process that a test has forked lives on.
            fcntl.flock(turn, fcntl.LOCK_UN)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many gradients were copied out of CUDA graphs, call by call."""
    # Imported where it is used: other tests begin without the runtime.
    from mixbackend.execute.cuda_graphs import gradients

    counts: list[int] = []
    original = gradients.copies_of
    monkeypatch.setattr(gradients, "copies_of", lambda tensors: counts.append(len(tensors)) or original(tensors))
    return counts


@pytest.fixture
def precision() -> Iterator[Callable[[str], None]]:
    """Sets how exact products in float32 are; as before afterwards."""
    import torch

    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def fresh_process() -> Iterator[None]:
    """Nothing is kept for the whole process, neither from tests before nor for those that follow."""
    from mixbackend.host.process_facts import reset_for_tests

    reset_for_tests()
    yield
    reset_for_tests()
