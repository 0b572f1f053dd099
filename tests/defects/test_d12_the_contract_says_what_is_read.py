"""D12: what the contract lets a backend state is read by somebody."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from mixbackend.contracts import Backend, Traits

ROOT = Path(__file__).parents[2]
READERS = ("contracts", "partitioner", "mixbackend")


def _sources() -> str:
    return "\n".join(path.read_text("utf-8") for part in READERS for path in (ROOT / part).rglob("*.py"))


TEXT = _sources()
METHODS = [name for name, value in inspect.getmembers(Backend, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize("name", METHODS)
def test_every_question_is_asked(name: str) -> None:
    asked = (ROOT / "contracts" / "asked.py").read_text("utf-8")
    assert re.search(rf"\.{name}\b", TEXT) or re.search(rf"stated\.{name}\b", TEXT), f"nobody asks {name}"
    assert name in asked


@pytest.mark.parametrize("name", [item.name for item in dataclasses.fields(Traits)])
def test_every_trait_is_read(name: str) -> None:
    assert re.search(rf"\.{name}\b", TEXT), f"nobody reads {name}"
