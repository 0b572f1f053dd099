"""For all tests: no probing (priors instead), caches of the test run alone, what tests with and without a GPU share."""

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


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many gradients were copied out of CUDA graphs, call by call."""
    # Imported where it is used: other tests begin without the runtime.
    from mixbackend.runtime.cuda_graphs import gradients

    counts: list[int] = []
    original = gradients.copies_of
    monkeypatch.setattr(gradients, "copies_of", lambda tensors: counts.append(len(tensors)) or original(tensors))
    return counts
