"""Results that are views of inputs or of one another are such, as in eager: writes into one are seen in the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alias_programs import program, random_recipe, run_and_write

import mixbackend

Program = Callable[..., Any]

CODEGEN: dict[str, Any] = {"backends": ["codegen", "eager"]}
BORDERS: dict[str, Any] = {
    "backends": ["codegen", "eager"],
    "rules": [{"match": {"op": "aten.slice*"}, "require": "eager"}, {"match": {"op": "aten.mul*"}, "require": "eager"}],
}


def left_behind() -> torch.Tensor:
    a = torch.tensor([1])[0:1]
    b = a.squeeze()
    a[0] = 0
    torch._dynamo.graph_break()
    a[0] = 2
    return b


@pytest.mark.parametrize("configuration", [None, CODEGEN, {"backends": ["inductor", "eager"]}])
def test_a_view_keeps_its_base_over_a_graph_break(configuration: Any) -> None:
    assert torch.compile(left_behind, backend=mixbackend.auto(configuration))().item() == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_one_intermediate(dynamic: bool, grad: bool) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y[1:], y.t(), y[2], y.reshape(-1)[3:9:2]

    assert_as_in_eager(function, CODEGEN, grad, dynamic=dynamic)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_inputs(dynamic: bool, grad: bool) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x.t()[1:]
        return z, y.view(-1)[4:], y.split(2)[1], (x + y).sum(), y

    assert_as_in_eager(function, BORDERS, grad, dynamic=dynamic)


def test_a_gradient_through_views_that_leave() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 3
        return y[1:], y.t()

    gradients = []
    for run in (function, torch.compile(function, backend=mixbackend.auto(CODEGEN))):
        x = torch.arange(9.0).reshape(3, 3).div(9).requires_grad_()
        first, second = run(x)
        first.add_(1)
        (first.sum() * 2 + (second * second).sum()).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


class OfWeights(torch.nn.Module):
    """Returns views of a weight, and of a value made of weights alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scaled = self.weight * 2
        return self.weight.t(), scaled[1:], scaled.t(), x @ scaled


def test_writing_into_a_result_changes_no_constant() -> None:
    model = OfWeights().requires_grad_(False)
    run = torch.compile(model, backend=mixbackend.auto(CODEGEN))
    x = torch.randn(2, 4)
    for _ in range(3):
        for mine, eager in zip(run(x), model(x), strict=True):
            torch.testing.assert_close(mine, eager)
        _, scaled, whole, _ = run(x)
        scaled.fill_(7.0)
        assert (whole[:, 1:] == 7).all()
    transposed = run(x)[0]
    transposed[0, 1] = 5.0
    assert model.weight[1, 0] == 5
    torch.testing.assert_close(run(x)[3], model(x)[3])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_views_of_a_convolution(layout: torch.memory_format) -> None:
    convolution = torch.nn.Conv2d(4, 8, 3).requires_grad_(False)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = convolution(x)
        return y[:, 1:], y[0], y

    x = torch.randn(2, 4, 9, 9).to(memory_format=layout)
    first, second, whole = torch.compile(function, backend=mixbackend.auto(None))(x)
    torch.testing.assert_close(whole, convolution(x))
    first.zero_()
    second.add_(3)
    assert (whole[1, 1:] == 0).all() and (whole[0, 1:] == 3).all()


def test_results_that_share_nothing_in_eager_share_nothing() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.clone(), x.clone(), x * 1, x + 0, x.contiguous().clone().view(-1)

    assert_as_in_eager(function, CODEGEN, False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed: int) -> None:
    function = program(random_recipe(seed), breaks=seed % 3 != 0)
    configuration = (CODEGEN, BORDERS)[seed % 2]
    assert_as_in_eager(function, configuration, grad=seed % 4 == 3, dynamic=seed % 5 == 4)


def assert_as_in_eager(function: Program, configuration: Any, grad: bool, dynamic: bool | None = None) -> None:
    torch._dynamo.reset()
    try:
        expected = run_and_write(function, grad)
    except RuntimeError:
        pytest.skip("eager refuses the program")
    backend = mixbackend.auto(configuration)
    run = torch.compile(function, backend=backend, dynamic=dynamic)
    for _ in range(2):
        mine = run_and_write(run, grad)
        for value, wanted in zip(mine, expected, strict=True):
            if isinstance(wanted, torch.Tensor):
                torch.testing.assert_close(value, wanted)
            else:
                assert value == wanted
    told = [event for event in backend.report().events if event.kind in ("verify_failed", "fallback")]
    assert not told, told
