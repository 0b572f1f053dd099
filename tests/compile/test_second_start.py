"""A second start: what an earlier process planned and compiled is taken, and what only planning needs is not loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LEFT_OUT = (
    "mixbackend.backends.codegen.lower",
    "mixbackend.backends.codegen.schedule",
    "mixbackend.backends.codegen.targets.triton",
    "mixbackend.backends.common.onnx",
    "mixbackend.benchmarks",
    "mixbackend.calibrate",
    "mixbackend.cli",
    "mixbackend.commands",
    "mixbackend.compile.compared_call",
    "mixbackend.compile.tried_entry",
    "mixbackend.cost",
    "mixbackend.execute.cuda_graphs",
    "mixbackend.locking",
    "mixbackend.partitioner",
    "mixbackend.select.comparison",
    "mixbackend.select.race",
    "mixbackend.select.refine",
)
"""Packages and modules that commands, calibration, planning, measuring, foreign devices or first compilations need."""

LIGHT = frozenset(
    {
        "mixbackend.backends.codegen.targets.triton",
        "mixbackend.backends.codegen.targets.triton.availability",
        "mixbackend.calibrate",
        "mixbackend.cost",
        "mixbackend.cost.first_use",
        "mixbackend.cost.look_rows",
        "mixbackend.cost.switches",
        "mixbackend.partitioner",
        "mixbackend.partitioner.plan_canonical",
        "mixbackend.partitioner.plan_data",
    }
)
"""What of these is loaded: empty packages, the form of plans, and what tells whether the rest is needed."""

MOST_MODULES = 328
"""Of ours; each takes about half a millisecond."""

PROGRAM = """
import json, sys, torch
import mixbackend
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.GELU(), torch.nn.Linear(48, 16))
backend = mixbackend.auto({"backends": ["codegen", "onednn", "eager"]})
compiled = torch.compile(model, backend=backend)
with torch.no_grad():
    compiled(torch.randn(8, 32))
compiled(torch.randn(8, 32)).sum().backward()
print(json.dumps([name for name in sys.modules if name.split(".")[0] == "mixbackend"]))
"""


def started(caches: Path) -> list[str]:
    """Our modules that a process has loaded after its first calls, in inference and in training."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "XDG_CACHE_HOME": str(caches)},
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.nightly  # processes that compile a whole training step
def test_a_second_start_loads_nothing_that_only_planning_needs(tmp_path: Path) -> None:
    first, second = started(tmp_path), started(tmp_path)
    assert "mixbackend.partitioner.placement" in first and "mixbackend.cost.costs" in first
    loaded = {name for name in second if any(name == part or name.startswith(f"{part}.") for part in LEFT_OUT)}
    assert loaded - LIGHT == set()
    assert len(second) <= MOST_MODULES
