"""The noise that stochastic arithmetic measures is the error that exact arithmetic shows, and hides no wrong result."""

from __future__ import annotations

import mpmath
import pytest
import torch
from rounding_noise import rounding_noise

from mixbackend.contracts import ErrorBudget
from mixbackend.contracts.numerics import find_deviation
from mixbackend.graph.trace import trace_region

BUDGET = ErrorBudget(factor=4.0, floor=64.0)


def _wave(x):
    return torch.cos(torch.cosh(x)) * torch.sinh(x)


def _exact_wave(x):
    return mpmath.cos(mpmath.cosh(x)) * mpmath.sinh(x)


def _power(x):
    return torch.sin(x**7.5) * x


def _exact_power(x):
    return mpmath.sin(x ** mpmath.mpf(7.5)) * x


def _difference(x):
    return torch.sqrt(x + 1) - torch.sqrt(x)


def _exact_difference(x):
    return mpmath.sqrt(x + 1) - mpmath.sqrt(x)


CASES = {
    "wave": (_wave, _exact_wave, torch.linspace(2.0, 20.0, 41, dtype=torch.float64)),
    "power": (_power, _exact_power, torch.linspace(3.0, 30.0, 41, dtype=torch.float64)),
    "difference": (_difference, _exact_difference, torch.linspace(1e8, 3e9, 41, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", CASES)
def test_noise_of_float64_is_the_distance_from_exact_arithmetic(name):
    function, exactly, x = CASES[name]
    region = trace_region(function, [x])
    (eager,) = region.graph_module(x)
    (noise,) = rounding_noise(region, [x], [eager])
    with mpmath.workdps(50):
        exact = [
            float(mpmath.mpf(float(mine)) - exactly(mpmath.mpf(float(at)))) for mine, at in zip(eager, x, strict=True)
        ]
    error = torch.tensor(exact, dtype=torch.float64).abs()
    rms = [float(values.square().mean().sqrt()) for values in (error, noise)]
    assert rms[0] <= 4 * rms[1] <= 40 * rms[0]


@pytest.mark.parametrize("name", CASES)
def test_what_is_farther_off_than_rounding_is_still_found(name):
    function, _, x = CASES[name]
    region = trace_region(function, [x])
    (eager,) = region.graph_module(x)
    (noise,) = rounding_noise(region, [x], [eager])
    for wrong in (eager * (1 + 1e-4), function(x.float()).double()):
        assert find_deviation(0, wrong, eager, eager, BUDGET, noise) is not None


def test_values_that_are_only_moved_have_no_noise():
    x = torch.randn(5, 7, dtype=torch.float64)
    region = trace_region(lambda x: [torch.relu(-x.t()).amax(0), torch.where(x > 0, x, x.flip(0)), x.floor() // 1], [x])
    results = region.graph_module(x)
    assert all(bool((noise == 0).all()) for noise in rounding_noise(region, [x], results)[:2])


def test_gradients_that_cancel_exactly_are_as_noisy_as_their_parts():
    def gradient(x):
        result, backward = torch.func.vjp(lambda x: torch.nn.functional.layer_norm(x, (2,)), x)
        return backward(torch.cos(result))[0]

    x = torch.tensor([[-8.4784, -1.7658]])
    region = trace_region(gradient, [x])
    (eager,) = region.graph_module(x)
    (noise,) = rounding_noise(region, [x], [eager])
    assert float(gradient(x.double()).abs().max()) < 1e-15
    assert float(eager.abs().max()) < 1e-6 and 1e-9 < float(noise.max()) < 1e-6
