"""A private folder and a list of what storage reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from mixbackend.storage import StorageEvent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "cache"
    place.mkdir(mode=0o700)
    return place


@pytest.fixture
def events() -> list[StorageEvent]:
    return []
