"""Small computations that have nothing to do with each other start at once; what waits for another does not."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from mixbackend.backends.codegen.ir.check_programs import check_program
from mixbackend.backends.codegen.ir.program import Program
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.backends.codegen.schedule import launches as launches_module
from mixbackend.backends.codegen.schedule.schedule import schedule
from mixbackend.backends.codegen.targets.target import Blocks, TargetTraits
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.graph.trace import trace_region

BLOCKS = Blocks(16384, 16, 8192, 64, frozenset({"set", "add"}), beside=4)
TRAITS = TargetTraits("cpu", 128, 1 << 17, 264, frozenset({torch.float32, torch.bfloat16}), blocks=BLOCKS)


def program_of(function: Any, *shapes: tuple[int, ...], dynamic: bool = False, beside: int = 4) -> Program:
    with nullcontext() if dynamic else fresh_fake_mode():
        region = trace_region(function, [torch.empty(shape) for shape in shapes], dynamic=dynamic)
    program = schedule(lower_region(region), replace(TRAITS, blocks=replace(BLOCKS, beside=beside)))
    check_program(program)
    return program


def counts(program: Program) -> list[int]:
    return [len(calls) for calls in program.launches]


def converted(*weights: torch.Tensor) -> list[torch.Tensor]:
    return [weight.to(torch.bfloat16) for weight in weights]


def test_conversions_of_several_sizes_start_at_once() -> None:
    program = program_of(converted, (7, 9), (33,), (5, 4))
    assert counts(program) == [3]
    assert len(program.call_table.calls) == 1 and len(program.call_table.calls[0].slots) == 6


def test_targets_that_cannot_start_them_one_by_one() -> None:
    assert counts(program_of(converted, (7, 9), (33,), (5, 4), beside=1)) == [1, 1, 1]


def test_a_launch_takes_so_many() -> None:
    assert counts(program_of(converted, *((7, size) for size in range(3, 12)))) == [4, 4, 1]


def test_what_reads_another_waits() -> None:
    """Two folds of what a conversion made: their results are converted at once, behind them."""

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        a, b = x.sum(-1), y.sum(-1)
        return a.unsqueeze(-1) * x, b.unsqueeze(-1) * y, x.t() + 1

    program = program_of(function, (300, 70000), (200, 70001))
    assert len(program.launches) > 1
    for calls in program.launches:
        made = [name for call in calls for name in _written(call)]
        read = [name for call in calls for name in call.buffers if name not in _written(call)]
        assert len(made) == len(set(made)) and set(made).isdisjoint(read)


def test_large_kernels_and_symbolic_sizes_stay_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counts(program_of(converted, (7, 9), (33,), (5, 4), dynamic=True)) == [1, 1, 1]
    monkeypatch.setattr(launches_module, "LARGEST", 256)
    assert sorted(counts(program_of(converted, (7, 9), (33,), (5, 4)))) == [1, 2]


def test_an_input_is_written_after_it_was_read() -> None:
    """Counters count at once; what reads one before reads the old value."""

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        old = x.sum(-1)
        x.copy_(x + 1)
        y.copy_(y + 2)
        return old

    program = program_of(function, (3, 70001), (5, 7))
    order = [call for calls in program.launches for call in calls]
    writes = [place for place, call in enumerate(order) if "arg0_1" in _written(call)]
    reads = [place for place, call in enumerate(order) if "arg0_1" in call.buffers and place not in writes]
    assert max(reads, default=-1) < min(writes, default=len(order))


def _written(call: Any) -> set[str]:
    return {name for name, item in zip(call.buffers, call.kernel.buffers, strict=True) if item.access != "read"}


def test_projections_of_one_vector_start_at_once() -> None:
    """And nothing else: a product of more rows is for other hardware, and a longer sum has blocks of another form."""

    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, u: torch.Tensor) -> Any:
        long = torch.cat((x, x), 1) @ u
        return x @ w, x @ v, long

    shapes = (1, 64), (64, 24), (64, 9), (128, 24)
    program = program_of(function, *shapes)
    together = [calls for calls in program.launches if len(calls) > 1]
    assert [len(calls) for calls in together] == [2]


def test_what_follows_a_projection_waits() -> None:
    program = program_of(lambda x, w, v: (x @ w) @ v, (1, 64), (64, 64), (64, 9))
    assert counts(program) == [1, 1]
