"""A private folder, a list of what storage reported, and the way to this folder's helper modules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mixbackend.storage import StorageEvent

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "cache"
    place.mkdir(mode=0o700)
    return place


@pytest.fixture
def events() -> list[StorageEvent]:
    return []
