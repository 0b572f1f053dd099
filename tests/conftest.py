"""For all tests: no probing (priors instead), and caches that belong to the test run alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mixbackend.calibration import SWITCH


@pytest.fixture(autouse=True, scope="session")
def _isolated_machine_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Subprocesses of tests inherit both."""
    folder: Path = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    os.environ.setdefault(SWITCH, "0")
    os.environ["XDG_CACHE_HOME"] = str(folder)
