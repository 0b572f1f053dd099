"""Lightning: a Trainer fits a compiled module, and a module with a compiled part.

Importing Lightning replaces ``torch.compile`` by a function that copies its arguments. So it is imported in a process
of its own, as programs do that use it.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed"),
]

WORKER = Path(__file__).with_name("lightning_worker.py")


@pytest.mark.parametrize("what", ["module", "part", "fabric"])
def test_fits_as_eager_does(what, tmp_path):
    done = subprocess.run(
        [sys.executable, str(WORKER), what], capture_output=True, text=True, timeout=240, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal to eager" in done.stdout
