"""Everything here needs a GPU: without one it is skipped, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mixbackend
from mixbackend.contracts import ErrorBudget
from mixbackend.contracts.numerics import find_deviation


@pytest.fixture(autouse=True)
def gpu() -> torch.device:
    """The first GPU, with nothing compiled yet."""
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    torch._dynamo.reset()
    torch.manual_seed(0)
    return torch.device("cuda:0")


@pytest.fixture
def mixture(tmp_path: Any) -> Callable[..., Any]:
    """A new object per test, that raises what goes wrong; further settings override."""

    def make(**settings: Any) -> Any:
        from mixbackend.compile.mixture import Mixture

        base = {"on_failure": "raise", "cache": {"dir": str(tmp_path / "cache")}}
        return Mixture(mixbackend.Config().with_options({**base, **settings}))

    return make


@pytest.fixture
def close() -> Callable[..., None]:
    """Holds a result against eager's and a float64 reference."""

    def check(result: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, factor: float = 4.0) -> None:
        deviation = find_deviation(0, result.detach(), eager.detach(), exact.detach(), ErrorBudget(factor, 64.0))
        assert deviation is None, str(deviation)

    return check
