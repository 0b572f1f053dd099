"""``examples/serving`` for some seconds: every request is answered, in batches, and the metrics name the regions."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "serving"
MISSING = [name for name in ("fastapi", "uvicorn", "prometheus_client") if importlib.util.find_spec(name) is None]


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed (examples/serving/requirements.txt)")
def test_a_server_of_two_workers_answers_everything_and_counts_its_regions() -> None:
    given = {**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLE), *filter(None, sys.path)])}
    options = ["--seconds", "3", "--warm-s", "1", "--workers", "2", "--metrics", "--json"]
    command = [sys.executable, str(EXAMPLE / "load.py"), *options]
    told = subprocess.run(command, env=given, capture_output=True, text=True, timeout=800)
    assert told.returncode == 0, told.stdout + told.stderr
    *metrics, last = told.stdout.splitlines()
    (found,) = json.loads(last)
    assert found["errors"] == 0 and found["per_s"] > 0 and 0 < found["p50_ms"] <= found["p99_ms"]
    nodes = [line for line in metrics if line.startswith("mixbackend_region_nodes{")]
    assert any('graph="forward.1"' in line for line in nodes) and any('graph="forward",' in line for line in nodes)
    assert any(line.startswith("batch_rows_count") and float(line.split()[1]) > 0 for line in metrics)
