"""A language model's loss on a GPU: what is as large as the vocabulary is read once per step and written once.

Values are checked with all other patterns (``vocabulary_loss`` and ``vocabulary_gradient`` of ``triton_cases``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from triton_cases import vocabulary_gradient, vocabulary_loss

from mixbackend.backends.codegen.ir.program import OutputBuffer, Program
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.backends.codegen.schedule.schedule import schedule
from mixbackend.backends.codegen.targets.triton.compiler import Architecture
from mixbackend.backends.codegen.targets.triton.target import Hardware, TritonTarget
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.graph.trace import trace_region

pytest.importorskip("triton", reason="Triton is not installed")

HARDWARE = Hardware(Architecture("cuda", "90", 32), 132)
BATCH, LENGTH, CLASSES = 8, 512, 50257
ROWS = BATCH * (LENGTH - 1)
SCORES = 2 * BATCH * LENGTH * CLASSES
"""Bytes of all scores in bfloat16."""
SMALL = 64 * ROWS


def program_of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Program:
    """The program for a GPU: scores in bfloat16, targets, and float32 values."""
    with fresh_fake_mode():
        scores = torch.empty((BATCH, LENGTH, CLASSES), dtype=torch.bfloat16, device="cuda")
        targets = torch.empty((ROWS,), dtype=torch.int64, device="cuda")
        region = trace_region(function, [scores, targets, *(torch.empty(shape, device="cuda") for shape in shapes)])
    return schedule(lower_region(region), TritonTarget(HARDWARE).traits())


def written(program: Program) -> int:
    """Bytes of results and of what lies in memory between kernels."""
    results = [item for item in program.outputs if isinstance(item, OutputBuffer)]
    between = sum(int(item.size) for item in program.workspace)
    return between + sum(math.prod(int(size) for size in item.sizes) * item.dtype.itemsize for item in results)


def test_the_loss_writes_numbers_per_row() -> None:
    program = program_of(vocabulary_loss)
    assert len(program.calls) == 2, str(program)
    assert written(program) < SMALL
    # The second one reads an element of each row.
    first, second = (str(call.kernel) for call in program.calls)
    assert first.count("exp(") == 1 and "exp(" not in second


def test_the_gradient_is_one_kernel_from_scores_to_scores() -> None:
    program = program_of(vocabulary_gradient, (), (), (ROWS, 1), (ROWS, 1))
    assert SCORES <= written(program) < SCORES + SMALL
    scores = program.inputs[[item.type.dtype for item in program.inputs].index(torch.bfloat16)].name
    assert [scores in call.buffers for call in program.calls] == [False, True], str(program)
    # What each row's gradients add up to is known without a pass over the vocabulary.
    assert "reduce" not in str(program)
