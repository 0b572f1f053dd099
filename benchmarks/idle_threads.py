"""How idle OpenMP threads wait in the processes that measure: as without a setting, or asleep.

Place: code that starts a process that measures makes its environment here; tests that run side by side do, too.
Invariants: imports no torch: its runtime reads these variables when it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from mixbackend.host.thread_environment import DECIDING, Runtime, decided_by_user

_SLEEP_AT_ONCE: Mapping[Runtime, tuple[str, str]] = {"gnu": ("GOMP_SPINCOUNT", "0"), "intel": ("KMP_BLOCKTIME", "0")}


def make_threads_sleep(environment: MutableMapping[str, str]) -> None:
    """Make idle OpenMP threads sleep, in this process and those it starts, unless the user decided otherwise."""
    undecided = [runtime for runtime in DECIDING if not decided_by_user(runtime, environment)]
    environment.update(_SLEEP_AT_ONCE[runtime] for runtime in undecided)


def without_decisions(environment: Mapping[str, str]) -> dict[str, str]:
    """A copy in which nothing is decided."""
    deciding = {name for names in DECIDING.values() for name in names}
    return {name: value for name, value in environment.items() if name not in deciding}
