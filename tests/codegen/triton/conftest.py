"""Lets the tests of this folder import its helper modules (importlib mode leaves ``sys.path`` alone)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from triton_answers import Answers


@pytest.fixture(scope="session")
def answer() -> Iterator[Answers]:
    """What Triton's interpreter computes."""
    answers = Answers()
    yield answers
    answers.close()
