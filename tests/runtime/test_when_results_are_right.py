"""The rule of the error budget where eager or the reference overflows."""

from __future__ import annotations

import math

import pytest
import torch

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
    monkeypatch.setattr(numerics, "_COMPARED_AT_ONCE", 30)
    pieces = find_deviation(0, mine, eager, exact, BUDGET)
    assert (whole is None) == (spoiled == "nothing") == (pieces is None)
    if whole is not None:
        assert pieces.measure == whole.measure
        assert pieces.error == pytest.approx(whole.error) and pieces.allowed == pytest.approx(whole.allowed)


def test_pieces_are_small_and_no_copies(monkeypatch):
    monkeypatch.setattr(numerics, "_COMPARED_AT_ONCE", 30)
    value = torch.arange(24.0 * 10).view(10, 24).t()
    pieces = numerics._slices(value)
    assert max(piece.numel() for piece in pieces) <= 30
    assert torch.equal(torch.cat(pieces), value)
    assert {piece.untyped_storage().data_ptr() for piece in pieces} == {value.untyped_storage().data_ptr()}
