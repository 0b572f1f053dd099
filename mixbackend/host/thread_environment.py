"""Thread settings that an OpenMP runtime reads when it is loaded, with torch: before that, or never.

Place: ``host.threads`` asks it whether the user decided. Nothing of the package sets them: what it measures and decides
is for programs that set nothing either.
Invariants: imports no torch; a variable that is set and that a runtime heeds decides for that runtime.

Idle OpenMP threads wait for their next task in a loop of some milliseconds. If another library's pool works meanwhile,
they take the cores from it. With a count of zero they sleep at once; waking them costs a few microseconds for each
kernel, and 50 to 100 in virtual machines: a training step of 500 small kernels takes twice as long. Counts in between
were measured and are worse than both: where cores are shared with other programs, a spinning thread keeps the one that
it waits for from running.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Runtime = Literal["gnu", "intel"]
"""GNU's ``libgomp``, which torch's wheels bring along; Intel's and LLVM's ``libiomp5`` and ``libomp``."""

DECIDING: Mapping[Runtime, tuple[str, ...]] = {
    "gnu": ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"),
    "intel": ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "KMP_LIBRARY"),
}
"""The variables by which a user decides."""


def decided_by_user(runtime: Runtime, environment: Mapping[str, str]) -> str:
    """The settings that decide how idle threads of a runtime wait, as ``NAME=value``; ``""`` if there are none."""
    return " ".join(f"{name}={environment[name]}" for name in DECIDING[runtime] if name in environment)
