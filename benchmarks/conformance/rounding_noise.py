"""How far rounding alone moves what eager returns: where eager is near to float64 by luck, that is how far it may be.

Place: asked by ``operator_check`` where a result seems wrong. Method: the sample runs in float64 again and again, and
every result of an operator is rounded to eager's type, up or down at random (``execute.rounding``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mixbackend.benchmarks.conformance.operator_sample import OperatorSample
from mixbackend.contracts.torch_compat import results_replaced
from mixbackend.execute.rounding import NEAREST, RandomRounding

_DRAWS = 5


def rounding_noise(sample: OperatorSample, exact: Sequence[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """For every result its root mean square distance from float64, element by element.

    Args:
        exact: the results in float64.
        dtype: that eager computes in.
    """
    squares = [torch.zeros(item.shape, dtype=torch.float64) for item in exact]
    for seed in range(_DRAWS):
        rounding = RandomRounding(seed)
        with results_replaced(lambda value, rounding=rounding: _rounded(value, rounding, dtype)):  # type: ignore[misc]
            drawn = sample.run(wide=True).tensors()
        for total, moved, right in zip(squares, drawn, exact, strict=True):
            total += (moved - right).abs().double().nan_to_num(0.0, 0.0, 0.0).square()
    return [total.div(_DRAWS).sqrt() * NEAREST for total in squares]


def _rounded(value: torch.Tensor, rounding: RandomRounding, dtype: torch.dtype) -> torch.Tensor:
    return rounding(value, dtype) if value.dtype == torch.float64 else value
