"""Printed kernels, compiled for narrow and wide vectors, do what the interpreter does."""

from __future__ import annotations

import functools

import pytest
import torch
from printed_kernels import Library, interpreted
from sample_kernels import SAMPLES

WIDTHS = (16, 64)
SIZES = {"small": (3, 5, 7), "odd": (37, 131, 3), "even": (32, 64, 2), "long": (2, 1500, 9), "tall": (600, 21, 3)}
CASES = [(name, size) for name in SAMPLES for size in SIZES if size != "tall" or name.startswith("column")]
"""Only folded columns are printed in a way of their own when they are tall."""


@pytest.fixture(scope="module", params=WIDTHS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(SAMPLES, tmp_path_factory.mktemp("kernels"), request.param)


def _memory(name: str, sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    """Values for every buffer, large enough for every sample; integers that are positions are in range."""
    generator = torch.Generator().manual_seed(len(name))
    volume = 4 * sizes["p0"] * sizes["p1"] * (sizes["p2"] if name == "two_reduced" else 1) + 300
    rows = max(sizes["p0"] // 2, 1)
    made = {}
    for item in SAMPLES[name].buffers:
        if item.dtype.is_floating_point:
            values = torch.randn(volume, generator=generator, dtype=torch.float64).to(item.dtype)
        elif item.dtype == torch.bool:
            values = torch.randint(0, 3, (volume,), generator=generator) > 0
        else:
            values = torch.randint(0, rows, (volume,), generator=generator).to(item.dtype)
        made[item.name] = values
    return made


@functools.cache
def _expected(name: str, size: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], list[int], list[float]]:
    """Memory before and after a run of the interpreter, parameters and numbers."""
    kernel = SAMPLES[name]
    known = dict(zip(("p0", "p1", "p2"), SIZES[size], strict=True))
    if name == "tiled":
        known["p1"] = -(-known["p0"] // 100)
    parameters = [known[str(symbol)] for symbol in kernel.parameters]
    numbers = [0.75] * len(kernel.numbers)
    memory = _memory(name, known)
    return memory, interpreted(kernel, memory, parameters, numbers), parameters, numbers


@pytest.mark.sampled(60)
@pytest.mark.parametrize(("name", "size"), CASES)
def test_compiled_equals_interpreted(library: Library, name: str, size: str) -> None:
    before, expected, parameters, numbers = _expected(name, size)
    memory = {key: value.clone() for key, value in before.items()}
    library.run(name, memory, parameters, numbers)
    for item in SAMPLES[name].buffers:
        loose = {"rtol": 3e-5, "atol": 3e-5} if item.dtype == torch.float32 else {}
        torch.testing.assert_close(memory[item.name], expected[item.name], equal_nan=True, **loose)
