"""A result is wrong if it is farther off than rounding takes it, not if eager happened to be near."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional

from mixbackend.contracts import ErrorBudget
from mixbackend.execute import verify
from mixbackend.execute.reference import RoundingNoise
from mixbackend.execute.rounding import RandomRounding
from mixbackend.execute.verify import check_region, eager_result, reference_result
from mixbackend.graph.trace import trace_region

BUDGET = ErrorBudget(factor=3.0, floor=4.0)
DRAWS = 64


def _loss(value, first, second):
    return functional.relu(value @ first).matmul(second).float().logsumexp(-1).mean()


def _values(seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((16, 64), (64, 64), (64, 32))
    return [torch.randn(shape, generator=generator).to(torch.bfloat16) / 2 for shape in shapes]


def _lucky():
    """Values for which eager's loss is nearer to float64 than usual."""
    region = trace_region(_loss, _values(0))
    errors = {}
    for seed in range(DRAWS):
        eager = eager_result(region, _values(seed))
        (exact,) = reference_result(region, _values(seed), eager)
        errors[seed] = abs(float(eager[0].double() - exact))
    usual = sorted(errors.values())[DRAWS // 2]
    seed = min(errors, key=errors.__getitem__)
    return region, _values(seed), errors[seed], usual


def test_a_loss_may_be_as_far_off_as_rounding_takes_it():
    region, values, lucky, usual = _lucky()
    assert lucky * BUDGET.factor * 4 < usual, "eager must have been lucky for this to be a test"
    (exact,) = reference_result(region, values, eager_result(region, values))
    result = (exact + usual).float()
    assert check_region(region, values, [result], BUDGET).right


@pytest.mark.parametrize("times", [20, 100])
def test_a_loss_may_not_be_farther_off(times):
    region, values, _, usual = _lucky()
    (exact,) = reference_result(region, values, eager_result(region, values))
    deviation = check_region(region, values, [(exact + times * usual).float()], BUDGET).deviation
    assert deviation is not None and deviation.measure == "rms"
    # What the message calls eager's distance is that of its noise.
    assert usual / 4 < deviation.eager_error < 4 * usual


def test_variances_by_subtracting_squares_are_still_wrong():
    def function(value):
        return torch.var_mean(value, 0, correction=0)

    values = [torch.randn(4096, 8) + 100]
    region = trace_region(function, values)
    wrong = (values[0].square().mean(0) - values[0].mean(0).square(), values[0].mean(0))
    assert check_region(region, values, eager_result(region, values), BUDGET).right
    assert check_region(region, values, wrong, BUDGET).deviation.output == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rounding_goes_to_one_of_two_neighbours_and_to_neither_side_in_the_mean(dtype):
    value = torch.full((20000,), 1 + torch.finfo(dtype).eps / 4, dtype=torch.float64)
    found = RandomRounding(0)(value, dtype)
    assert set(found.tolist()) == {1.0, 1 + torch.finfo(dtype).eps}
    assert torch.isclose(found.mean() - 1, value.mean() - 1, rtol=0.1)
    exact = torch.tensor([0.0, -1.5, 2.0, float("inf"), float("-inf")], dtype=torch.float64)
    assert torch.equal(RandomRounding(0)(exact, dtype), exact)
    assert torch.equal(RandomRounding(3)(value, dtype), RandomRounding(3)(value, dtype))


def test_torchs_random_state_is_left_alone():
    before = torch.get_rng_state()
    RandomRounding(0)(torch.rand(8, dtype=torch.float64, generator=torch.Generator()), torch.bfloat16)
    assert torch.equal(torch.get_rng_state(), before)


def test_numbers_made_of_nothing_are_as_exact_as_the_type_that_they_are_made_in():
    """What is 32 bits wide on its way is no nearer to the truth for being returned in 64."""

    def function(value):
        return torch.linspace(0, 1, 7).to(torch.float64) * value

    values = [torch.ones(7, dtype=torch.float64)]
    region = trace_region(function, values)
    exact = torch.linspace(0, 1, 7, dtype=torch.float64)
    assert check_region(region, values, [exact], BUDGET).right
    assert check_region(region, values, [exact + 3e-8], BUDGET).right
    assert check_region(region, values, [exact * 1.01], BUDGET).deviation is not None


def test_one_draw_tells_how_far_roundings_take_a_whole_result(monkeypatch):
    """Where eager itself is far off, each draw takes as long as the reference several times over."""
    drawn = []
    monkeypatch.setattr(verify, "RoundingNoise", counted(drawn))
    values = [value.float() for value in _values(0)[:2]]
    region = trace_region(lambda value, first: (value @ first) * 1e-4 + 1e4 - 1e4, values)
    eager = eager_result(region, values)
    assert check_region(region, values, eager, BUDGET).right
    assert drawn == [1]


def counted(draws):
    class Counted(RoundingNoise):
        def of(self, index, count=4):
            draws.append(count)
            return super().of(index, count)

    return Counted


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_an_exact_gelu_far_below_zero_is_right(dtype):
    """Eager adds nearly -1 to 1 there, and keeps no digit of the difference; in float64 neither."""
    value = torch.tensor([-7.3, -7.3], dtype=dtype)
    region = trace_region(lambda value: functional.gelu(value, approximate="tanh"), [value])
    wide = value.double()
    exact = wide * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (wide + 0.044715 * wide**3))
    eager = eager_result(region, [value])
    assert not torch.allclose(eager[0].double(), exact, rtol=0.5, atol=0), "eager must be off for this to be a test"
    assert check_region(region, [value], [exact.to(dtype)], BUDGET).right
    assert check_region(region, [value], [eager[0]], BUDGET).right
    unit = torch.finfo(dtype).eps * 7.3
    assert not check_region(region, [value], [(exact + 20 * unit).to(dtype)], BUDGET).right


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("far", [-9.0, -7.0])
def test_a_gelu_that_eager_has_right_is_no_farther_off_for_its_sum(dtype, far):
    """What eager adds to 1 is -1 in its type here, and so is the number next to it: nothing is rounded."""
    value = torch.tensor([far, far], dtype=dtype) * (1.3 if dtype is torch.float64 else 1)
    region = trace_region(functional.gelu, [value])
    eager = eager_result(region, [value])
    unit = torch.finfo(torch.promote_types(dtype, torch.float32)).eps / 2
    assert not eager[0].any()
    assert check_region(region, [value], eager, BUDGET).right
    assert check_region(region, [value], [value * unit / 2], BUDGET).deviation is not None
