"""A12, B16: Triton text of values made of positions beyond 32 bits, and of running extremes of small integers.

``codegen/triton`` holds what the text computes (``test_integers_of_every_width``); here it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

TABLE = Path(__file__).parents[1] / "codegen" / "triton"
LONG = 40_000
"""Points of a row that is walked in pieces."""


def _positions(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x + torch.arange(0, 4_000_000_000, 100_000), x * torch.arange(5_000_000_000, 5_000_000_000 + LONG)


def _extremes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return *torch.cummax(x, -1), *torch.cummin(x, -1)


KEYS = [
    (_positions, torch.int64),
    *((_extremes, dtype) for dtype in (torch.int8, torch.uint8, torch.int16, torch.bool, torch.int64)),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("function", "dtype"), KEYS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_text_has_machine_code(
    function: Callable[..., Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(TABLE))
    from triton_programs import HARDWARE, SETTINGS, backend

    from mixbackend.backends.codegen.targets.triton.compiler import compile_texts
    from mixbackend.backends.codegen.targets.triton.printing import print_program
    from mixbackend.graph.trace import trace_region

    program = backend().program(trace_region(function, [torch.zeros(2, LONG, dtype=dtype)]))
    binaries = compile_texts(print_program(program, SETTINGS).texts, HARDWARE.architecture)
    assert all(binary.code.startswith(b"\x7fELF") for binary in binaries)


def test_symbolic_sizes_take_code_for_64_bits_where_their_values_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TABLE))
    from triton_programs import SETTINGS, backend

    from mixbackend.backends.codegen.targets.triton.printing import print_program
    from mixbackend.graph.trace import trace_region

    x = torch.zeros(5, 7, dtype=torch.int64)
    region = trace_region(lambda x: x + torch.arange(x.shape[1]) * 3_000_000_000, [x], dynamic=True)
    assert any("tl.int64" in text.body for text in print_program(backend().program(region), SETTINGS).texts)
