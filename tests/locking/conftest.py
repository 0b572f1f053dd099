"""Lets the tests of this folder import their helper, and gives them a model and a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from locking_bench import Bench, Small


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def small() -> Small:
    torch.manual_seed(0)
    return Small().eval()
