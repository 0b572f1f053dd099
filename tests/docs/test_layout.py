"""``docs/layout.md`` names every file, and no file that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("contracts", "mixbackend", "partitioner", "backends", "benchmarks")
TEXT = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("part", PARTS)
def test_every_file_is_named(part: str) -> None:
    named = {name.rpartition("/")[2] for name in re.findall(r"`([\w/]+\.py)`", TEXT)}
    paths = [path for path in (ROOT / part).rglob("*.py") if path.name not in ("__init__.py", "__main__.py")]
    missing = sorted(str(path.relative_to(ROOT)) for path in paths if path.name not in named)
    assert missing == [], "add a line to docs/layout.md"


def test_every_named_path_exists() -> None:
    names = re.findall(rf"`((?:{'|'.join(PARTS)})/[\w/]*(?:\.py)?)`", TEXT)
    assert len(names) > 60
    assert [name for name in names if not (ROOT / name).exists()] == []
