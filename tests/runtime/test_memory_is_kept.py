"""Freed memory stays in the process, unless the user decided."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mixbackend.runtime.memory import decided_by_user

FAULTS = """
import resource, torch
from mixbackend.runtime.memory import keep_freed_memory
taken = keep_freed_memory()
torch.set_num_threads(1)
for _ in range(5):
    torch.ones(1 << 20).sum()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(1 << 20).sum()
print(taken, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts page faults of Linux")
def test_values_made_again_and_again_cost_no_page_faults() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True)
    taken, faults = done.stdout.split()
    assert taken == "True" and int(faults) < 1024, "one value alone has 1024 pages"


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
