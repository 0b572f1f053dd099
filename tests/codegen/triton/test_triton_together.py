"""Kernels that start at once are one Triton function: as many launches as expected, machine code, few functions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from triton_programs import HARDWARE, SETTINGS, backend

from mixbackend.backends.codegen.ir.program import Program
from mixbackend.backends.codegen.targets.triton.printing import print_program, values_of
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.graph.trace import trace_region

pytest.importorskip("triton", reason="Triton is not installed")

from mixbackend.backends.codegen.targets.triton.compiler import compile_texts

BERT = [(768, 768), (768,), (3072, 768), (3072,), (768, 3072), (2, 768)]


def conversions(shapes: Sequence[tuple[int, ...]]) -> Program:
    with fresh_fake_mode():
        weights = [torch.empty(shape) for shape in shapes]
        region = trace_region(lambda *values: [value.to(torch.bfloat16) for value in values], weights)
    return backend().program(region)


def test_conversions_of_a_model_are_few_launches() -> None:
    program = conversions(BERT * 12)
    assert len(program.launches) <= 12
    printed = print_program(program, SETTINGS)
    assert len(printed.places) == len(printed.counts) == len(program.launches) == len(program.call_table.calls)


def test_equal_kernels_are_one_function() -> None:
    program = conversions([(3, 5), (64, 3), (7, 5), (64, 11)])
    assert [len(calls) for calls in program.launches] == [4]
    (text,) = print_program(program, SETTINGS).texts
    assert text.body.count("def part") == 4 and len(text.signature) == 8
    blocks, *_ = values_of(print_program(program, SETTINGS))([])
    assert blocks == 4


def test_there_is_machine_code_for_them() -> None:
    printed = print_program(conversions(BERT), SETTINGS)
    for text, binary in zip(printed.texts, compile_texts(printed.texts, HARDWARE.architecture), strict=True):
        assert binary.code.startswith(b"\x7fELF") and binary.threads == 32 * text.warps
