"""Fixtures of ``stand_in_backends`` for the tests of this folder, and those of machines that ranks of a job run on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as distributed
from flat_costs import FlatCosts
from regime_cases import named
from stand_in_backends import *  # noqa: F403
from stand_in_backends import Loopback

from mixbackend.cost import costs as costs_module


@pytest.fixture
def store() -> distributed.Store:
    """Of a job."""
    return distributed.HashStore()


@pytest.fixture
def backends() -> tuple[Any, Any]:
    """Two that take everything."""
    return named(Loopback, "small"), named(Loopback, "large")


@pytest.fixture
def prefer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make one of the backends the cheapest on the machine of this rank."""

    def preferred(name: str) -> None:
        costs = FlatCosts(seconds={name: 1e-9, "eager": 1e-3})
        monkeypatch.setattr(costs_module, "cost_model", lambda *arguments, **keywords: costs)

    return preferred


@pytest.fixture
def make(make_mixture: Any, tmp_path: Path) -> Callable[..., Any]:
    """A mixture with the cache of one rank's machine."""

    def made(rank: int, *chosen: Any, **options: Any) -> Any:
        torch._dynamo.reset()
        return make_mixture(*chosen, cache={"dir": str(tmp_path / f"of rank {rank}")}, **options)

    return made
