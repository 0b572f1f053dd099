"""Least milliseconds of the GPU's rows: what is counted of a model, and what becomes of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mixbackend.benchmarks.gpu_limits import (
    ATTENTION,
    CONVOLUTIONS,
    PRODUCTS,
    WEIGHTS,
    Rates,
    Work,
    limit_of,
    table,
    work_of,
)
from mixbackend.benchmarks.gpu_models import GpuRow, Phase


class Attending(nn.Module):
    """A product, attention of one head, and norms that count nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16, bias=False), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x))[:, None]
        return nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True).relu()


def row(phase: Phase) -> GpuRow:
    return GpuRow("row", phase, lambda: (Attending(), (torch.randn(2, 4, 8),)))


def test_products_and_attention_are_counted_and_nothing_else() -> None:
    product, attention = work_of(row("inference"))
    assert product == Work(PRODUCTS, 2.0 * 8 * 8 * 16, 2.0 * (8 * 8 + 8 * 16 + 8 * 16))
    assert attention == Work(ATTENTION, 0.5 * 2 * (2 * 4 * 4) * (16 + 16), 2.0 * 4 * (2 * 4 * 16))


def test_a_training_step_has_gradients_and_the_optimizer() -> None:
    forward, step = work_of(row("inference")), work_of(row("training"))
    assert [work.kind for work in step] == [PRODUCTS, ATTENTION, WEIGHTS]
    assert step[0].flops == 2.0 * forward[0].flops, "the input of the model needs no gradient"
    assert step[1].flops == 3.5 * forward[1].flops
    assert step[2].bytes == 20.0 * (8 * 16 + 16 + 16)


def test_convolutions_are_a_class_of_their_own() -> None:
    made = GpuRow("row", "inference", lambda: (nn.Conv2d(3, 4, 3, bias=False), (torch.randn(1, 3, 5, 5),)))
    (work,) = work_of(made)
    assert work == Work(CONVOLUTIONS, 2.0 * 9 * 4 * 27, 2.0 * (75 + 108 + 36))


def test_a_kernel_takes_the_longer_of_arithmetic_and_memory() -> None:
    limit = limit_of(row("inference"), Rates(flops=1e3, bytes=1e3))
    assert limit.arithmetic_ms == pytest.approx(2048 + 1024)
    assert limit.by_kind == {PRODUCTS: pytest.approx(2048), ATTENTION: pytest.approx(1024)}
    assert (limit.least_ms, limit.bound_by_memory_ms) == (pytest.approx(3072), 0.0)
    slow = limit_of(row("inference"), Rates(flops=1e9, bytes=1e3))
    assert (slow.least_ms, slow.bound_by_memory_ms) == (pytest.approx(640 + 1024), pytest.approx(640 + 1024))


def test_the_table_has_what_was_measured_beside_it() -> None:
    limits = [limit_of(row("inference"), Rates(flops=1e6, bytes=1e6))]
    measured = {"row": {"ways": {"ours": {"ms": 9.0}, "ours-graphs": {"ms": 6.144}, "inductor": {"ms": 12.288}}}}
    last = table(limits, measured).splitlines()[-1]
    assert last == "| row | 3.072 | 3.072 | 0.000 | 2.048 | 1.024 | 6.144 | 2.00 | 4.00 |"
    assert table(limits, {}).splitlines()[-1].endswith("| 1.024 |  |  |  |")
