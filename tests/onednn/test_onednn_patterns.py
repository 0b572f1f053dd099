"""Products with what follows them: every epilogue is found, fused, and right; NaN and infinities included."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

aten = torch.ops.aten


def _formula(value: torch.Tensor) -> torch.Tensor:
    return 0.5 * value * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (value + 0.044715 * torch.pow(value, 3.0))))


ACTIVATIONS = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda value: functional.gelu(value, approximate="tanh"),
    "gelu_formula": _formula,
    "silu": functional.silu,
    "silu_product": lambda value: value * torch.sigmoid(value),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": functional.hardswish,
    "leaky_relu": lambda value: functional.leaky_relu(value, 0.1),
    "relu": functional.relu,
    "hardsigmoid": functional.hardsigmoid,
    "hardtanh": lambda value: functional.hardtanh(value, -0.5, 2.0),
    "clamp": lambda value: torch.clamp(value, 0.0, 6.0),
}


def _spread(*shape: int) -> torch.Tensor:
    """Values of all magnitudes, with NaN and both infinities."""
    value = torch.randn(shape) * torch.logspace(-4, 3, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    value.view(-1)[:3] = torch.tensor([math.nan, math.inf, -math.inf])
    return value


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_linear_layers_with_activations(bench, name):
    activate = ACTIVATIONS[name]
    layer = lambda x, w, b: activate(aten.addmm(b, x, aten.t(w)))  # noqa: E731
    built = bench.check(layer, torch.randn(8, 5), torch.randn(6, 5), torch.randn(6), constants=(1, 2))
    assert built.patterns == (f"linear_{name}",)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nan_and_infinity_come_through(bench, name):
    activate = ACTIVATIONS[name]
    built = bench.build(lambda x, w: activate(aten.mm(x, w)), torch.ones(40, 1), torch.ones(1, 1))
    assert built.patterns == (f"linear_{name}",)
    built.check(_spread(40, 1), torch.ones(1, 1))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_convolutions_with_activations(bench, name):
    activate = ACTIVATIONS[name]
    function = lambda x, w, b: activate(functional.conv2d(x, w, b, padding=1))  # noqa: E731
    x = torch.randn(2, 3, 8, 8)
    for image in (x, x.contiguous(memory_format=torch.channels_last)):
        built = bench.build(function, image, torch.randn(4, 3, 3, 3), torch.randn(4), constants=(1, 2))
        assert built.patterns == (f"convolution_{name}",)
        built.check(image, torch.randn(4, 3, 3, 3), torch.randn(4))
        built.check(_spread(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4))


@pytest.mark.parametrize("name", ["gelu_formula", "silu_product", "relu", "leaky_relu"])
def test_reshapes_between_a_product_and_its_activation(bench, name):
    """As models of text fold batch and length for the product, and use the folded value several times."""

    def layer(x, w, b):
        flat = aten.addmm(b, x.reshape(6, 5), w)
        return ACTIVATIONS[name](aten.unsqueeze(flat.reshape(2, 3, 4), 0))

    built = bench.check(layer, torch.randn(2, 3, 5), torch.randn(5, 4), torch.randn(4), constants=(1, 2))
    assert built.patterns == (f"linear_{name}",)


@pytest.mark.parametrize(("name", "combine"), [("add", torch.add), ("mul", torch.mul)])
def test_second_tensors(bench, name, combine):
    x, w, b, other = torch.randn(6, 5), torch.randn(5, 4), torch.randn(4), torch.randn(2, 3, 4)
    plain = lambda x, w, b, other: combine(other, aten.addmm(b, x, w))  # noqa: E731
    built = bench.build(plain, x, w, b, other.reshape(6, 4), constants=(1, 2))
    assert built.patterns == (f"linear_{name}",)
    for second in (
        other.reshape(6, 4),
        torch.randn(4, 6).t(),
        torch.randn(6, 8)[:, ::2],
        torch.randn(1, 4).expand(6, 4),
    ):
        (result,) = built.check(x, w, b, second)
        assert result.is_contiguous()
    folded = lambda x, w, b, other: combine(aten.addmm(b, x, w).reshape(2, 3, 4), other)  # noqa: E731
    built = bench.build(folded, x, w, b, other, constants=(1, 2))
    assert built.patterns == (f"linear_{name}",)
    for second in (other, torch.randn(3, 2, 4).transpose(0, 1)):
        built.check(x, w, b, second)
    built.check(torch.randn(6, 5), w, b, torch.full((2, 3, 4), math.nan))


@pytest.mark.parametrize("name", ["add", "mul"])
def test_second_tensors_of_convolutions(bench, name):
    combine = {"add": torch.add, "mul": torch.mul}[name]
    x, w, b, other = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4), torch.randn(2, 4, 8, 8)
    function = lambda x, w, b, other: combine(functional.conv2d(x, w, b, padding=1), other)  # noqa: E731
    for form in (torch.contiguous_format, torch.channels_last):
        built = bench.build(function, x.contiguous(memory_format=form), w, b, other, constants=(1, 2))
        assert built.patterns == (f"convolution_{name}",)
        for second in (other, other.contiguous(memory_format=torch.channels_last), other.transpose(2, 3)):
            built.check(x.contiguous(memory_format=form), w, b, second)


def test_residuals_with_relu(bench):
    convolution = lambda x, w, other: functional.relu(functional.conv2d(x, w, padding=1) + other)  # noqa: E731
    x, w, other = torch.randn(2, 4, 8, 8), torch.randn(4, 4, 3, 3), torch.randn(2, 4, 8, 8)
    built = bench.check(convolution, x, w, other, constants=(1,))
    assert built.patterns == ("convolution_add_relu",)
    other[0, 0, 0, 0] = math.nan
    built.check(x, w, other)
    linear = lambda x, w, other: functional.relu(other + aten.mm(x, w))  # noqa: E731
    assert bench.check(linear, torch.randn(3, 4), torch.randn(4, 5), torch.randn(3, 5)).patterns == ("linear_add_relu",)


def test_gated_layers(bench):
    """``silu(x @ a) * (x @ b)``: both products end in an epilogue."""
    function = lambda x, a, b: functional.silu(aten.mm(x, a)) * aten.mm(x, b)  # noqa: E731
    built = bench.check(function, torch.randn(6, 5), torch.randn(5, 4), torch.randn(5, 4), constants=(1, 2))
    assert sorted(built.patterns) == ["linear_mul", "linear_silu"]


def _matches(bench, function, *inputs):
    plan = bench.plan(function, *inputs)
    return [pattern for region in plan.regions for pattern, _ in region.matches]


_X, _W, _B = torch.randn(256, 256), torch.randn(256, 256), torch.randn(256)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: (functional.relu(p := aten.mm(x, w)), p),
        lambda x, w, b: (functional.relu(p := aten.mm(x, w)), p.sum(0)),
        lambda x, w, b: (functional.relu((p := aten.mm(x, w)).reshape(4, 64, 256)), p.t()),
        lambda x, w, b: aten.mm(x, w) + b,
        lambda x, w, b: torch.add(aten.mm(x, w), x, alpha=2),
        lambda x, w, b: aten.addmm(x, x, w).relu(),
        lambda x, w, b: functional.relu(aten.mm(x, w).t()),
        lambda x, w, b: functional.leaky_relu(aten.mm(x, w), 0.0),
        lambda x, w, b: (h := aten.mm(x, w)) + h.sin(),
        lambda x, w, b: aten.mm(x, w) + x.double(),
    ],
    ids=[
        "the inside is a result",
        "the inside is summed",
        "the inside is turned",
        "broadcast",
        "alpha",
        "a matrix as bias",
        "a transpose between",
        "a slope of zero",
        "the other depends on the product",
        "promotion",
    ],
)
def test_what_does_not_fit_is_not_fused(bench, function):
    assert _matches(bench, function, _X, _W, _B) == []


def test_the_planner_takes_the_fused_form_by_cost(bench):
    assert _matches(bench, lambda x, w, b: functional.gelu(aten.addmm(b, x, w)), _X, _W, _B) == ["linear_gelu"]
    small = [torch.randn(2, 3), torch.randn(3, 4), torch.randn(4)]
    assert _matches(bench, lambda x, w, b: functional.gelu(aten.addmm(b, x, w)), *small) == []
