"""Rounding: what a computation might as well have returned, had its roundings gone the other way.

Place: asked by ``runtime.verify`` where a result seems wrong. Input: float64 values, and the types eager holds them in.
Output: the values rounded to these types, up or down at random, so that the mean is the value.
Eager's distance from float64 is one draw of rounding noise. Many numbers tell its size; a loss is one number, and of
reciprocal deviations those of nearly dead channels outweigh all others: there, eager may be near by luck.
"""

from __future__ import annotations

import math

import torch

NEAREST = math.sqrt(0.5)
"""Errors of rounding to the nearest number over those of rounding up or down at random, root mean square."""


class RandomRounding:
    """Rounds values; the same seed gives the same roundings.

    Args:
        seed: of this draw. torch's own generators are left alone: what is verified may draw from them.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __call__(self, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A float64 value on the numbers of a narrower type; what is on them already stays."""
        unit = torch.ldexp(torch.full_like(value, torch.finfo(dtype).eps), torch.frexp(value).exponent - 1)
        draws = torch.rand(value.shape, generator=self._generator(value.device), device=value.device, dtype=value.dtype)
        rounded = torch.floor(value / unit + draws) * unit
        return torch.where(torch.isfinite(rounded), rounded, value)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]
