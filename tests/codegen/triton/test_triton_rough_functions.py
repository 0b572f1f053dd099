"""Functions for results of 16 bits: how far they are off, where they are taken, and what they cost."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from triton_answers import Answers
from triton_programs import SETTINGS, backend

from mixbackend.backends.codegen.backend import CodegenBackend
from mixbackend.backends.codegen.targets.cpp.target import CppTarget
from mixbackend.backends.codegen.targets.triton.printing import print_program
from mixbackend.graph.trace import trace_region

pytest.importorskip("triton", reason="Triton is not installed")

FORMULAS = {
    "gelu": F.gelu,
    "tanh_gelu": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "glu": F.glu,
    "gelu_backward": lambda x: torch.ops.aten.gelu_backward(x, x),
    "tanh_gelu_backward": lambda x: torch.ops.aten.gelu_backward(x, x, approximate="tanh"),
    "silu_backward": lambda x: torch.ops.aten.silu_backward(x, x),
}


@pytest.mark.parametrize(("name", "relative", "below"), [("normal", 9e-6, 1e-10), ("sigmoid", 9e-6, 1e-37)])
def test_results_of_16_bits_hide_what_they_are_off_by(
    answer: Answers, name: str, relative: float, below: float
) -> None:
    found = answer("run_triton_rough_functions", name)
    assert 0 < found["relative"] <= relative and found["absolute_below"] <= below
    # An eighth of the least distance that rounding to float16 makes.
    assert relative < 2**-12 / 8
    # Ends and NaN are what they are elsewhere.
    *ends, nan = found["special"]
    assert ends == pytest.approx([0.0, 0.0, 0.5, 0.5, 1.0, 1.0], abs=5e-6) and math.isnan(nan)
    assert ends[0] == 0 and ends[-1] == 1 and found["nan"]


@pytest.mark.parametrize("name", FORMULAS)
def test_only_results_of_16_bits_take_them(name: str) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        program = backend().program(trace_region(FORMULAS[name], [torch.zeros(64, 64, dtype=dtype)]))
        (text,) = print_program(program, SETTINGS).texts
        assert ("rough_normal" in text.body or "tl.exp(" in text.body) == (dtype.itemsize == 2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FORMULAS)
def test_processors_compute_them_as_exactly_as_others(name: str) -> None:
    x = torch.linspace(-12, 12, 4096).bfloat16()
    (found,) = CodegenBackend(CppTarget()).compile(trace_region(FORMULAS[name], [x])).run([x])
    torch.testing.assert_close(found.double(), FORMULAS[name](x.double()), rtol=2**-8, atol=2**-20)
