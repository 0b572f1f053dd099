"""The attention kernel, compiled for vectors of every width, against float64."""

from __future__ import annotations

import pytest
import sympy
import torch
from header_levels import KernelsOnDemand, level_name, levels
from team_calls import call_kernel

from mixbackend.backends.codegen.interpret.templates import evaluate_template
from mixbackend.backends.codegen.ir.kernel import BufferParameter, BufferView, TemplateKernel
from mixbackend.backends.codegen.targets.cpp.target import CppTarget
from mixbackend.backends.codegen.targets.cpp.templates import PRINTERS

SCALE = 0.2
KERNELS = (
    ("plain", torch.float32, False, False),
    ("masked", torch.float32, True, True),
    ("brain", torch.bfloat16, True, False),
    ("half", torch.float16, False, True),
)
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
SIZES = (
    (1, 1, 8),
    (3, 40, 5),
    (4, 131, 40),
    (1, 70, 160),
    (5, 40, 5),
    (16, 16, 16),
    (17, 64, 40),
    (33, 65, 32),
    (70, 131, 24),
)
"""Queries, keys, width."""


def _kernel(dtype: torch.dtype, masked: bool, causal: bool) -> TemplateKernel:
    ranks = (4, 4, 4, 4 if masked else 0, 4, 3)
    symbols = iter(sympy.Symbol(f"p{number}", integer=True, nonnegative=True) for number in range(60))
    views: list[BufferView | None] = []
    buffers: list[BufferParameter] = []
    used: list[sympy.Symbol] = []
    for place, rank in enumerate(ranks):
        if rank == 0:
            views.append(None)
            continue
        name = f"b{len(buffers)}"
        made = [next(symbols) for _ in range(2 * rank + 1)]
        views.append(BufferView(name, tuple(made[:rank]), tuple(made[rank:-1]), made[-1]))
        buffers.append(BufferParameter(name, torch.float32 if place == 5 else dtype, "read" if place < 4 else "write"))
        used += made
    options = (("causal", causal), ("scale", SCALE), ("zeros", True))
    return TemplateKernel(tuple(used), tuple(buffers), "attention", options, tuple(views[:4]), tuple(views[4:]))


@pytest.fixture(scope="module", params=levels(), ids=level_name)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> KernelsOnDemand:
    kernels = {name: _kernel(*parts) for name, *parts in KERNELS}
    return KernelsOnDemand(request.param, kernels.__getitem__, tmp_path_factory.mktemp("attention"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "dtype", "masked", "causal"), KERNELS)
def test_results_are_those_of_float64(
    library: KernelsOnDemand, name: str, dtype: torch.dtype, masked: bool, causal: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    for queries, keys, width in SIZES:
        shapes = [(2, 3, queries, width), (2, 3, keys, width), (2, 3, keys, width)]
        inputs = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
        mask = torch.randn((2, 1, queries, keys), generator=generator).to(dtype).expand(2, 3, queries, keys)
        operands = [*inputs, mask] if masked else inputs
        results = [torch.full((2, 3, queries, width), 7.0, dtype=dtype), torch.full((2, 3, queries), 7.0)]
        memory = [*operands, *results]
        sizes = [number for item in memory for number in (*item.shape, *item.stride(), 0)]
        call_kernel(library[name], memory, sizes)
        exact = [item.double() for item in inputs]
        options = (("causal", causal), ("scale", SCALE), ("zeros", True))
        expected = evaluate_template("attention", (*exact, mask.double() if masked else None), options)
        for result, reference, kind in zip(results, expected, (dtype, torch.float32), strict=True):
            # Values are around 1: what rounding leaves is relative to that.
            error = (result.double() - reference).abs().max().item()
            assert error <= TOLERANCE[kind] * max(1.0, reference.abs().max().item()), f"{queries} {keys} {width}"


def test_the_target_prints_what_it_states() -> None:
    assert CppTarget().traits().templates == frozenset(PRINTERS)


@pytest.mark.sampled(1)
def test_no_keys_give_zeros(library: KernelsOnDemand) -> None:
    query, keys = torch.randn(2, 3, 20, 8), torch.randn(2, 3, 0, 8)
    results = [torch.full((2, 3, 20, 8), 7.0), torch.full((2, 3, 20), 7.0)]
    memory = [query, keys, keys, *results]
    call_kernel(library["plain"], memory, [number for item in memory for number in (*item.shape, *item.stride(), 0)])
    assert not any(result.any() for result in results)
