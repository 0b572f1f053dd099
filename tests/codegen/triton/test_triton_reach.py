"""Indices of 32 bits where sizes allow them, 64 elsewhere, without a guard on any size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from triton_programs import HARDWARE, SETTINGS, backend, printed

from mixbackend.backends.codegen.targets.triton.compiler import compile_texts
from mixbackend.backends.codegen.targets.triton.limits import LARGEST_INDEX
from mixbackend.backends.codegen.targets.triton.printing import Printed, print_program, reach_of_launch
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.graph.trace import trace_region


def _fake(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Printed:
    with fresh_fake_mode():
        inputs = [torch.empty(shape, dtype=torch.float16) for shape in shapes]
    return print_program(backend().program(trace_region(function, inputs)), SETTINGS)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["symbolic_points", "symbolic_rows", "symbolic_product"])
def test_symbolic_sizes_have_two_texts(name: str) -> None:
    made = printed(name, torch.float32)
    for narrow, wide in zip(made.texts, made.wide, strict=True):
        assert "tl.program_id(0).to(tl.int64)" not in narrow.body and "tl.program_id(0).to(tl.int64)" in wide.body
        assert {kind for symbol, kind in narrow.signature if symbol.startswith("p")} == {"i32"}
        assert {kind for symbol, kind in wide.signature if symbol.startswith("p")} == {"i64"}
    pytest.importorskip("triton", reason="Triton is not installed")
    for texts in (made.texts, made.wide):
        assert all(binary.code for binary in compile_texts(texts, HARDWARE.architecture))


def test_a_launch_knows_how_far_it_reaches() -> None:
    made = printed("symbolic_points", torch.float32)
    reach = reach_of_launch(made)
    count = made.reach.count("p[") and max(int(part.split("]")[0]) for part in made.reach.split("p[")[1:]) + 1
    assert reach([1 << 10] * count) <= LARGEST_INDEX < reach([1 << 17] * count)


def test_known_sizes_have_one_text() -> None:
    small = _fake(lambda x: x + 1, (64, 64))
    assert small.texts == small.wide and reach_of_launch(small)([]) == 0 and ".to(tl.int64)" not in small.texts[0].body
    large = _fake(lambda x: x + 1, (1 << 16, 1 << 15))
    assert large.texts == large.wide and ".to(tl.int64)" in large.texts[0].body


def test_what_is_divided_counts_by_its_divisor() -> None:
    wrapped = _fake(lambda x: x.repeat(1 << 10, 3), (1 << 12, 1 << 6))
    assert all("tl.program_id(0).to(tl.int64)" not in text.body for text in wrapped.texts)
