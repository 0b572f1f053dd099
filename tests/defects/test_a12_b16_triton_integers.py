"""A12, B16: Triton text of values made of positions beyond 32 bits, and of running extremes of small integers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

TABLE = Path(__file__).parents[1] / "codegen" / "triton"
NAMES = ("positions_beyond_32_bits", "running_extremes")
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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", [[], ["tight"]], ids=["whole rows", "rows in pieces"])
def test_interpreted_text_computes_what_eager_does(way: list[str]) -> None:
    command = [sys.executable, "-W", "ignore", str(TABLE / "run_triton_cases.py"), "interpreter", *way, *NAMES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert {answer["case"] for answer in answers} == set(NAMES)
    for answer in answers:
        assert answer.get("deviations") == [], answer


def test_symbolic_sizes_take_code_for_64_bits_where_their_values_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TABLE))
    from triton_programs import SETTINGS, backend

    from mixbackend.backends.codegen.targets.triton.printing import print_program
    from mixbackend.graph.trace import trace_region

    x = torch.zeros(5, 7, dtype=torch.int64)
    region = trace_region(lambda x: x + torch.arange(x.shape[1]) * 3_000_000_000, [x], dynamic=True)
    assert any("tl.int64" in text.body for text in print_program(backend().program(region), SETTINGS).texts)
