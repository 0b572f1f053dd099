"""Positions of extremes are held against what they name: near ties may be decided otherwise, nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mixbackend.contracts import ErrorBudget
from mixbackend.execute import verify
from mixbackend.execute.check_memory import CallMemory
from mixbackend.execute.verify import Check, check_region, eager_result
from mixbackend.graph.trace import trace_region

BUDGET = ErrorBudget(factor=4.0, floor=64.0)
ROWS, WIDTH, COLUMNS = 300, 64, 700

CHOICES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "argmax": lambda x: x.argmax(-1, keepdim=True),
    "argmin": lambda x: x.argmin(1),
    "of all": lambda x: x.argmax(),
    "max": lambda x: x.max(-1, keepdim=True)[1],
    "min": lambda x: x.min(1)[1],
    "topk": lambda x: x.topk(4, -1)[1],
    "sort": lambda x: x.sort(-1, descending=True)[1],
}


def product(choose: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda x, y: choose(x @ y)


def factors() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(ROWS, WIDTH, generator=generator).bfloat16(),
        torch.randn(WIDTH, COLUMNS, generator=generator).bfloat16(),
    )


def checked(function: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...], result: torch.Tensor) -> Check:
    return check_region(trace_region(function, list(inputs)), inputs, [result], BUDGET)


@pytest.fixture(params=["float64", "eager alone"])
def reference(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known: float64 values, or, where memory is short, eager's own."""
    if request.param == "eager alone":
        monkeypatch.setattr(CallMemory, "wide", property(lambda memory: verify.BYTE_CAP + 1))
        monkeypatch.setattr(CallMemory, "parts", lambda *arguments: None)


@pytest.mark.sampled(7)
@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize("name", CHOICES)
def test_positions_by_values_that_were_rounded_otherwise_are_right(name: str) -> None:
    function, (x, y) = product(CHOICES[name]), factors()
    eager, exact = x @ y, x.double() @ y.double()
    # As far off as eager's may be, elsewhere.
    noise = torch.rand(exact.shape, generator=torch.Generator().manual_seed(1)) * 2 - 1
    mine = CHOICES[name](exact + noise * (eager - exact).abs().amax(-1, keepdim=True))
    if name != "of all":
        assert ((mine != CHOICES[name](eager)) & (mine != CHOICES[name](exact))).any()
    assert checked(function, (x, y), mine).right


@pytest.mark.sampled(7)
@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize("name", CHOICES)
def test_positions_of_lesser_values_are_wrong(name: str) -> None:
    function, (x, y) = product(CHOICES[name]), factors()
    right = eager_result(trace_region(function, [x, y]), (x, y))[0]
    assert checked(function, (x, y), right).right
    moved = (right + 1) % COLUMNS
    assert checked(function, (x, y), moved).deviation is not None
    assert checked(function, (x, y), right - COLUMNS * ROWS * 2).deviation is not None


@pytest.mark.parametrize("name", ["topk", "sort"])
def test_a_position_is_not_named_twice(name: str) -> None:
    function, (x, y) = product(CHOICES[name]), factors()
    y = y[:, :1].expand(-1, COLUMNS) * (1 + torch.arange(COLUMNS) * 1e-6)
    mine = eager_result(trace_region(function, [x, y.bfloat16()]), (x, y.bfloat16()))[0].clone()
    mine[:, 1] = mine[:, 0]
    assert checked(function, (x, y.bfloat16()), mine).deviation is not None


def test_ties_of_exact_values_are_decided_as_torch_does() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 1.0]])
    right = torch.tensor([1, 0])
    assert checked(lambda x: x.argmax(-1), (x,), right).right
    assert checked(lambda x: x.argmax(-1), (x,), torch.tensor([2, 0])).deviation is not None


def test_values_that_are_masked_are_not_near() -> None:
    x, y = factors()
    mask = torch.zeros(COLUMNS, dtype=torch.bfloat16)
    mask[::2] = float("-inf")

    def masked(x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (x @ y + mask).argmax(-1)

    mine = (x.float() @ y.float() + mask).argmax(-1)
    assert checked(masked, (x, y, mask), mine).right
    assert checked(masked, (x, y, mask), mine - 1).deviation is not None
