"""A rebind that is interrupted or fails leaves nothing behind: the next call makes the constants again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mixbackend
from mixbackend.compile.program_entry import ProgramEntry
from mixbackend.execute.weights import watch

STEPS = {
    "watching": (watch.WeightWatch, "__init__"),
    "making constants": (torch, "detach"),
    "binding": (ProgramEntry, "bind"),
    "settling": (watch.WeightWatch, "settle"),
}


class Scaled(torch.nn.Module):
    """Computes with a value that is made of its weight alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 8), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ (self.weight * 2 + 1).t())


@pytest.mark.sampled(8)
@pytest.mark.parametrize("failing_call", [1, 2])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("step", STEPS)
def test_new_weights_are_used_after_a_failure(
    step: str, error: type[BaseException], failing_call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = Scaled(), torch.randn(3, 8)
    run = torch.compile(model, backend=mixbackend.auto({"backends": ["codegen", "eager"], "on_failure": "raise"}))
    if failing_call == 2:
        torch.testing.assert_close(run(x), model(x))
        model.load_state_dict({"weight": torch.randn(8, 8)})

    def fails(*arguments: Any, **keywords: Any) -> None:
        raise error("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(*STEPS[step], fails)
        with pytest.raises(error):
            run(x)
    for _ in range(2):
        torch.testing.assert_close(run(x), model(x))
    model.load_state_dict({"weight": torch.randn(8, 8)})
    torch.testing.assert_close(run(x), model(x))
