"""For tests of this folder and below: helper modules to import (importlib mode leaves ``sys.path`` alone), and Dynamo
without graphs of other tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _nothing_compiled_yet() -> None:
    """Equal configurations give one object, and its report has all graphs since the last reset."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()
