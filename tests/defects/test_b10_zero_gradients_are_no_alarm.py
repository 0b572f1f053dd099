"""B10: where the true value is zero, a result may be as far off as what was summed is known, and no farther."""

from __future__ import annotations

import pytest
import torch

import mixbackend
from mixbackend.contracts import ErrorBudget
from mixbackend.execute.verify import check_region, eager_result
from mixbackend.graph.trace import trace_region

BUDGET = ErrorBudget(factor=4.0, floor=64.0)
aten = torch.ops.aten


def _backward(gradient, value, weight, mean, scale, source):
    """Gradients of a batch norm's input, of the weight of a linear layer before it, and of its bias."""
    arguments = (gradient, value, weight, None, None, mean, scale, True, 1e-5, [True, True, True])
    moved = aten.native_batch_norm_backward(*arguments)[0]
    return moved, moved.t() @ source, moved.sum(0)


def _by_another_formula(gradient, value, weight, mean, scale, source):
    """As torch's compiler decomposes it."""
    centred = value - mean
    projected = (gradient * centred).sum(0)
    share = 1 / len(value)
    moved = (gradient - centred * (projected * share * scale * scale) - gradient.sum(0) * share) * (scale * weight)
    return moved, moved.t() @ source, moved.sum(0)


def _case(dtype, rows=15, gradient=None):
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(rows, 8, generator=generator, dtype=dtype)
    value = source @ torch.randn(8, 8, generator=generator, dtype=dtype)
    variance, mean = torch.var_mean(value, 0, correction=0)
    weight = torch.rand(8, generator=generator, dtype=dtype) + 0.5
    gradient = torch.full_like(value, 0.1) if gradient is None else gradient(value)
    return [gradient, value, weight, mean, (variance + 1e-5).rsqrt(), source]


@pytest.mark.parametrize("rows", [15, 16, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_that_are_zero_may_be_noise(dtype, rows):
    inputs = _case(dtype, rows)
    region = trace_region(_backward, inputs)
    assert check_region(region, inputs, eager_result(region, inputs), BUDGET).right
    assert check_region(region, inputs, _by_another_formula(*inputs), BUDGET).right


@pytest.mark.sampled(7)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("output", [0, 1, 2])
@pytest.mark.parametrize("wrong", ["all", "one", "not centred"])
def test_gradients_that_are_zero_may_be_nothing_else(dtype, output, wrong):
    inputs = _case(dtype)
    region = trace_region(_backward, inputs)
    results = [result.clone() for result in _by_another_formula(*inputs)]
    step = 1e-4 if dtype is torch.float32 else 1e-12
    if wrong == "all":
        results[output] += step
    elif wrong == "one":
        results[output].view(-1)[3] += step
    else:
        gradient, source = inputs[0], inputs[-1]
        results[output] = (gradient, gradient.t() @ source, gradient.sum(0))[output]
    check = check_region(region, inputs, results, BUDGET)
    assert check.deviation is not None and check.deviation.output == output


@pytest.mark.parametrize("factor", [1.01, 0.0])
def test_gradients_that_are_not_zero_are_held_as_before(factor):
    inputs = _case(torch.float32, gradient=lambda value: value.sin())
    region = trace_region(_backward, inputs)
    results = _by_another_formula(*inputs)
    assert check_region(region, inputs, results, BUDGET).right
    for output in range(2):
        wrong = [result * factor if place == output else result for place, result in enumerate(results)]
        assert check_region(region, inputs, wrong, BUDGET).deviation.output == output


def test_a_sum_that_cancels_may_be_summed_in_another_order():
    half = torch.randn(5000, generator=torch.Generator().manual_seed(0)) * 1000
    value = torch.cat([half, -half.flip(0)])
    region = trace_region(lambda x: x.sum(), [value])
    halves = value[:5000].sum() + value[5000:].sum()
    one_by_one = value.cumsum(0)[-1]
    for result in (halves, one_by_one):
        assert check_region(region, [value], [result], BUDGET).right
    for wrong in (value[1:].sum(), halves + 50):
        assert check_region(region, [value], [wrong], BUDGET).deviation is not None


def test_places_and_truths_have_no_noise():
    """Which of equal numbers is the largest is decided, not rounded."""
    value = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    region = trace_region(lambda x: torch.gather(x * torch.arange(4.0), 1, x.max(1, keepdim=True)[1]), [value])
    assert check_region(region, [value], eager_result(region, [value]), BUDGET).right
    assert check_region(region, [value], [torch.tensor([[6.0]])], BUDGET).deviation is not None


def test_inductor_keeps_the_backward_of_linear_and_batch_norm():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    rules = [{"match": {"op": op}, "require": "inductor"} for op in ("aten.native_batch_norm_backward*", "aten.mm*")]
    mixture = mixbackend.auto({"backends": ["inductor", "eager"], "rules": rules, "min_region": {"inductor": 1}})
    torch.compile(model, backend=mixture)(torch.randn(16, 8)).sum().backward()
    report = mixture.report().to_dict()
    assert not [event for event in report["events"] if event["kind"] not in ("threads", "tuning")]
    owners = {region["backend"] for graph in report["graphs"] for region in graph["regions"]}
    assert "inductor" in owners
    assert all(parameter.grad.abs().max() < 1e-4 for parameter in model[0].parameters())
