"""OpenVINO's whole-model conversion: traced, exported where tracing fails, and both reasons where neither works."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

from mixbackend.benchmarks.peers import executors


@pytest.mark.nightly
def test_models_with_operators_that_tracing_cannot_convert_are_exported() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.linear(torch.diff(ids.cumsum(-1), dim=-1))

    module, inputs = Steps().eval(), (torch.randn(2, 5),)
    level = logging.getLogger().level
    executor = executors.inference("openvino", None, module, inputs, 1)
    assert logging.getLogger().level == level
    with torch.no_grad():
        torch.testing.assert_close(executor.results(executor.run())["output 0"], module(*inputs))


def test_both_reasons_are_told() -> None:
    class Failing:
        @staticmethod
        def convert_model(source: Any, **options: Any) -> Any:
            raise ValueError("no rule when traced" if options else "no rule when exported")

    with pytest.raises(RuntimeError, match="traced: no rule when traced; exported: no rule when exported"):
        executors._converted(Failing, nn.Linear(2, 2), (torch.randn(1, 2),))
