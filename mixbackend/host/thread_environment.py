"""Thread settings that an OpenMP runtime reads when it is loaded, with torch: before that, or never.

Place: ``host.threads`` asks it whether the user decided; tests and benchmarks set what they need for the processes that
they start. The command line sets nothing: what it measures and decides is for programs that set nothing either.
Invariants: imports no torch; whoever set a variable that a runtime heeds has decided for that runtime.

Idle OpenMP threads wait for their next task in a loop of some milliseconds. If another library's pool works meanwhile,
they take the cores from it. With a count of zero they sleep at once; waking them costs a few microseconds for each
kernel, and 50 to 100 in virtual machines: a training step of 500 small kernels takes twice as long. Counts in between
were measured and are worse than both: where cores are shared with other programs, a spinning thread keeps the one that
it waits for from running.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Literal

Runtime = Literal["gnu", "intel"]
"""GNU's ``libgomp``, which torch's wheels bring along; Intel's and LLVM's ``libiomp5`` and ``libomp``."""

_DECIDING: Mapping[Runtime, tuple[str, ...]] = {
    "gnu": ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"),
    "intel": ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "KMP_LIBRARY"),
}
_SLEEP_AT_ONCE: Mapping[Runtime, tuple[str, str]] = {"gnu": ("GOMP_SPINCOUNT", "0"), "intel": ("KMP_BLOCKTIME", "0")}


def decided_by_user(runtime: Runtime, environment: Mapping[str, str]) -> str:
    """The settings that decide how idle threads of a runtime wait, as ``NAME=value``; ``""`` if there are none."""
    return " ".join(f"{name}={environment[name]}" for name in _DECIDING[runtime] if name in environment)


def make_threads_sleep(environment: MutableMapping[str, str]) -> None:
    """Make idle OpenMP threads sleep, in this process and those it starts, unless the user decided otherwise."""
    undecided = [runtime for runtime in _DECIDING if not decided_by_user(runtime, environment)]
    environment.update(_SLEEP_AT_ONCE[runtime] for runtime in undecided)


def without_decisions(environment: Mapping[str, str]) -> dict[str, str]:
    """A copy in which nothing is decided."""
    deciding = {name for names in _DECIDING.values() for name in names}
    return {name: value for name, value in environment.items() if name not in deciding}
