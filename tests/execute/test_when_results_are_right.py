"""The rule of the error budget where eager or the reference overflows."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mixbackend.contracts import ErrorBudget, numerics
from mixbackend.contracts.numerics import find_deviation

BUDGET = ErrorBudget(factor=4.0, floor=64.0)


@pytest.mark.parametrize(
    ("mine", "eager", "exact", "is_right"),
    [
        (9.0, math.inf, 9.0, True),  # eager overflowed on its way
        (9.3, math.nan, 9.28, True),
        (60.0, math.inf, 9.0, False),
        (math.inf, math.inf, 9.0, True),  # as eager
        (-math.inf, math.inf, 9.0, False),
        (math.inf, math.nan, 64000.0, True),  # just beyond the type
        (-math.inf, math.nan, 64000.0, False),
        (math.inf, math.nan, 20000.0, False),
        (math.nan, math.inf, 9.0, False),
        (math.inf, 65504.0, 65530.0, True),  # the reference, rounded
        (math.inf, 65504.0, 65500.0, False),
        (math.nan, 9.0, 9.0, False),
        (math.nan, 9.0, math.nan, True),  # as the reference
        (7.0, 9.0, math.nan, False),
        (7.0, math.nan, math.nan, False),
        (7.0, math.inf, math.inf, False),
    ],
)
def test_one_element_among_ordinary_ones(mine, eager, exact, is_right):
    ordinary = [1.0, 2.0, 3.0]
    result, theirs = (torch.tensor([value, *ordinary], dtype=torch.float16) for value in (mine, eager))
    reference = torch.tensor([exact, *ordinary], dtype=torch.float64)
    assert (find_deviation(0, result, theirs, reference, BUDGET) is None) == is_right


def test_an_element_that_was_right_by_luck_counts_as_far_off_as_its_noise():
    exact = torch.zeros(3, dtype=torch.float64)
    mine = torch.tensor([1e-17, 2e-17, 0.0], dtype=torch.float64)
    assert find_deviation(0, mine, exact, exact, BUDGET) is not None
    assert find_deviation(0, mine, exact, exact, BUDGET, torch.full((3,), 1e-17, dtype=torch.float64)) is None
    assert find_deviation(0, 10 * mine, exact, exact, BUDGET, torch.full((3,), 1e-17, dtype=torch.float64)) is not None


@pytest.mark.parametrize("shape", [(7, 50), (50, 7), (2, 5, 35), (350,)])
@pytest.mark.parametrize("spoiled", ["nothing", "one element", "every element", "a NaN"])
def test_large_results_are_compared_piece_by_piece_with_the_same_verdict(shape, spoiled, monkeypatch):
    exact = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).add(0.5)
    eager = exact.half()
    mine = eager.clone()
    if spoiled == "one element":
        mine.view(-1)[-1] += 1
    if spoiled == "every element":
        mine += 2.0
    if spoiled == "a NaN":
        mine.view(-1)[123] = math.nan
    whole = find_deviation(0, mine, eager, exact, BUDGET)
    monkeypatch.setattr(numerics, "ELEMENTS_AT_ONCE", 30)
    pieces = find_deviation(0, mine, eager, exact, BUDGET)
    assert (whole is None) == (spoiled == "nothing") == (pieces is None)
    if whole is not None:
        assert pieces.measure == whole.measure
        assert pieces.error == pytest.approx(whole.error) and pieces.allowed == pytest.approx(whole.allowed)


def test_pieces_are_small_and_no_copies(monkeypatch):
    monkeypatch.setattr(numerics, "ELEMENTS_AT_ONCE", 30)
    value = torch.arange(24.0 * 10).view(10, 24).t()
    pieces = numerics._slices(value)
    assert max(piece.numel() for piece in pieces) <= 30
    assert torch.equal(torch.cat(pieces), value)
    assert {piece.untyped_storage().data_ptr() for piece in pieces} == {value.untyped_storage().data_ptr()}


class _Operators(TorchDispatchMode):
    """Names of the operators that were called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.names.add(function.overloadpacket.__name__)
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.complex64])
def test_finite_results_are_compared_with_few_kinds_of_kernels(dtype):
    """Each kind is loaded at its first use, in the first call of a model."""
    exact = torch.randn(8, 5, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    result, eager = exact.to(dtype), exact.to(dtype)
    with _Operators() as called:
        assert find_deviation(0, result, eager, exact, BUDGET) is None
    kinds = called.names - {"stack", "cat", "unbind", "select", "unsqueeze", "view", "detach", "split"}
    assert kinds <= {"_to_copy", "sub", "linalg_vector_norm"}


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_finite_results_are_told_the_same_either_way(dtype, pieces, monkeypatch):
    if pieces:
        monkeypatch.setattr(numerics, "ELEMENTS_AT_ONCE", 16)
    generator = torch.Generator().manual_seed(3)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    exact, noise = (torch.randn(7, 11, dtype=wide, generator=generator) for _ in range(2))
    result, eager = (exact + 1e-2 * noise).to(dtype), (exact - 3e-3 * noise).to(dtype)
    quick = numerics._finite_distances(result, eager, exact)
    assert quick == pytest.approx(numerics._distances(result, eager, exact, None), rel=1e-12)


@pytest.mark.parametrize("place", ["result", "eager", "reference"])
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_looked_at_element_by_element(place, odd):
    values = {name: torch.ones(4, dtype=torch.float64) for name in ("result", "eager", "reference")}
    values[place][2] = odd
    assert numerics._finite_distances(**values) is None
