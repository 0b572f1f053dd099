"""Operator samples: zeros that torch never wrote and lazily negated views enter no region; results are eager's.

Before: a zero tensor among a graph's arguments (the gradient of ``sgn``) ended the process in generated code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mixbackend


def _model(value: torch.Tensor) -> torch.Tensor:
    return torch.tanh(value) * torch.exp(value) + value.cos()


def _compiled(function: Callable[..., torch.Tensor]) -> tuple[Callable[..., torch.Tensor], Any]:
    torch.compiler.reset()
    backend = mixbackend.auto({"select": "off"})
    return torch.compile(function, backend=backend), backend


def _faults(backend: Any) -> list[str]:
    return [str(event) for event in backend.report().events if event.kind in ("verify_failed", "repair")]


def test_a_zero_tensor_as_cotangent() -> None:
    compiled, backend = _compiled(_model)
    weight = (torch.rand(64, 64) - 0.5).requires_grad_()
    for function in (torch.sgn, torch.sin, torch.sgn):
        (mine,) = torch.autograd.grad(function(compiled(weight)).sum(), weight)
        (wanted,) = torch.autograd.grad(function(_model(weight)).sum(), weight)
        torch.testing.assert_close(mine, wanted)
    assert not _faults(backend)


def test_a_zero_tensor_as_input_and_made_inside() -> None:
    zeros = torch._efficientzerotensor((64, 64))
    compiled, _ = _compiled(_model)
    torch.testing.assert_close(compiled(zeros), _model(torch.zeros(64, 64)))

    value = torch.randn(64, 64, requires_grad=True)
    compiled, backend = _compiled(lambda given: torch.sgn(given) * 2)
    (mine,) = torch.autograd.grad(compiled(value).sum(), value)
    assert torch.equal(mine, torch.zeros(64, 64))
    assert not _faults(backend)


@pytest.mark.parametrize("inside", [False, True])
def test_negated_views(inside: bool) -> None:
    value = torch.randn(64, 64, dtype=torch.complex64)

    def through(given: torch.Tensor) -> torch.Tensor:
        return _model(given.conj().imag)

    compiled, backend = _compiled(through if inside else _model)
    given = value if inside else value.conj().imag
    torch.testing.assert_close(compiled(given), _model(value.imag.neg()))
    assert not _faults(backend)


def test_writing_into_a_negated_input() -> None:
    def write(given: torch.Tensor) -> torch.Tensor:
        given.mul_(3.0).tanh_()
        return given + 1

    mine, wanted = (torch.full((32, 32), 1 + 0.25j).conj().imag for _ in range(2))
    compiled, _ = _compiled(write)
    torch.testing.assert_close(compiled(mine), write(wanted))
    torch.testing.assert_close(mine, wanted)
