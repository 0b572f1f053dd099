"""Freed memory stays in the process, unless the user decided."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mixbackend.host.memory import decided_by_user

PAGES_OF_A_ROUND = 8 * 2048
FAULTS = """
import resource, torch
from mixbackend.host.memory import keep_freed_memory
taken = keep_freed_memory()
torch.set_num_threads(1)
def round():
    values = [torch.ones(1 << 21) for _ in range(8)]
for _ in range(3):
    round()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    round()
print(taken, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults() -> tuple[str, int]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    taken, count = done.stdout.split()
    return taken, int(count)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts page faults of Linux")
def test_values_made_again_and_again_cost_no_page_faults() -> None:
    taken, count = faults()
    assert taken == "True" and count < PAGES_OF_A_ROUND


@pytest.mark.parametrize(
    "environment",
    [
        {"MALLOC_TRIM_THRESHOLD_": "1"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1"},
        {"LD_PRELOAD": "libjemalloc.so"},
    ],
)
def test_the_user_decides(environment: dict[str, str]) -> None:
    assert decided_by_user(environment)
    assert not decided_by_user({"LD_PRELOAD": "libother.so", "GLIBC_TUNABLES": "glibc.rtld.nns=2"})
