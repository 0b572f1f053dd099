"""Kernels of equal layers in one region are built once, and compute what eager does with each layer's own weights."""

from __future__ import annotations

import pytest
import torch
from product_programs import check, values, weights
from torch import Tensor

from mixbackend.backends.codegen.schedule import schedule as schedule_module


def layer(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """A norm, a product and something by element, whose order of operands tells the tensors apart."""
    normed = (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5)
    return x - torch.nn.functional.gelu((normed * scale) @ weight) / (1 + scale.exp())


def layers(x: Tensor, *given: Tensor) -> Tensor:
    for weight, scale in zip(given[::2], given[1::2], strict=True):
        x = layer(x, weight, scale)
    return x


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one for each kernel that is built."""
    made: list[str] = []
    build = schedule_module.build_kernel

    def counted(group, *arguments):
        made.append(str(group))
        return build(group, *arguments)

    monkeypatch.setattr(schedule_module, "build_kernel", counted)
    return made


def test_ten_layers_are_as_many_kernels_as_three(built: list[str]) -> None:
    numbers = []
    for count in (3, 10):
        given = weights(*(((32, 32), (32,)) * count))
        start = len(built)
        _, program = check(layers, [values(4, 32), *given], range(1, 1 + len(given)))
        numbers.append((len(built) - start, len(program.calls)))
    (few, few_calls), (many, many_calls) = numbers
    assert many == few < many_calls and few_calls < many_calls


def test_layers_of_different_sizes_are_apart(built: list[str]) -> None:
    given = weights((32, 32), (32,), (32, 16), (16,))

    def narrowing(x: Tensor, first: Tensor, one: Tensor, second: Tensor, two: Tensor) -> Tensor:
        return layer(x, first, one) @ second * two

    check(narrowing, [values(4, 32), *given], range(1, 5))
    assert len(set(built)) > 2
