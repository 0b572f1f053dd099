"""Rounding: what a computation might as well have returned, had its roundings gone the other way.

Place: asked by ``execute.verify`` where a result seems wrong. Input: float64 values, and the types eager holds them in.
Output: the values rounded to these types, up or down at random, so that the mean is the value.
Eager's distance from float64 is one draw of rounding noise. Many numbers tell its size; a loss is one number, and of
reciprocal deviations those of nearly dead channels outweigh all others: there, eager may be near by luck.
"""

from __future__ import annotations

import math

import torch

NEAREST = math.sqrt(0.5)
"""Errors of rounding to the nearest number over those of rounding up or down at random, root mean square."""

_COARSER = 4
"""A float64 value is on float64's own numbers already: how much coarser a grid shows its rounding."""

_ONE_BY_ONE = 2.0
"""Numbers that are alike are rounded alike: sums of them are farther off than chance has it."""


class RandomRounding:
    """Rounds values; the same seed gives the same roundings.

    Args:
        seed: of this draw. torch's own generators are left alone: what is verified may draw from them.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __call__(self, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A float64 value on the numbers of a narrower type; what is on them already stays.

        Of float64 itself, a grid that is a little coarser.
        """
        limits = torch.finfo(dtype)
        eps = limits.eps * (_COARSER if dtype is torch.float64 else 1)
        unit = torch.ldexp(torch.full_like(value, eps), torch.frexp(value).exponent - 1)
        unit.clamp_(min=eps * limits.smallest_normal)
        steps = value / unit
        below = torch.floor(steps)
        rounded = (below + (self._draws(value) < steps - below)) * unit
        return torch.where(torch.isfinite(rounded), rounded, value)

    def moved(self, value: torch.Tensor, dtype: torch.dtype, terms: float) -> torch.Tensor:
        """A float64 value, moved so that its sums are as far off as they are if so many terms are added one by one.

        Each addition is off by up to a unit of what is summed so far: as if each term were off by all additions that it
        takes part in, which its neighbours take part in, too. Zero stays.
        """
        steps = self._draws(value).mul_(2).sub_(1)
        shared = steps.view(-1).cumsum(0).view_as(steps) * (_ONE_BY_ONE * math.sqrt(terms / value.numel()))
        return value * (1 + torch.finfo(dtype).eps * (steps + shared))

    def apart(self, moved: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        """What was moved, once more by up to twice as much, partly each element by itself and partly all alike."""
        alone, alike = self._draws(moved), self._draws(moved.new_zeros(()))
        return moved + (moved - exact).abs() * (2 * (alone + alike) - 2)

    def _draws(self, value: torch.Tensor) -> torch.Tensor:
        """Between 0 and 1, in row-major order."""
        return torch.rand(value.shape, generator=self._generator(value.device), device=value.device, dtype=value.dtype)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]
