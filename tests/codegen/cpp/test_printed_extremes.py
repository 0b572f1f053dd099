"""Printed kernels at their limits: nothing to fold, very long sums, special values, many threads."""

from __future__ import annotations

import math

import pytest
import torch
from printed_kernels import Library
from sample_kernels import SAMPLES

NAMES = [
    *("row_sum", "row_prod", "row_max", "row_any", "row_argmax", "column_sum", "column_max", "row_welford", "shifted"),
    *("flat_gelu", "column_welford", "column_argmin", "tiled", "logcumsumexp_rows", "cumsum_rows"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    samples = {name: SAMPLES[name] for name in NAMES}
    return Library(samples, tmp_path_factory.mktemp("extremes"), 32)


def _call(library: Library, name: str, tensors: list[torch.Tensor], sizes: list[int]) -> None:
    library.run(name, {f"b{place}": tensor for place, tensor in enumerate(tensors)}, sizes, [])


@pytest.mark.parametrize(
    ("name", "identity"), [("row_sum", 0.0), ("row_prod", 1.0), ("row_max", -math.inf), ("column_sum", 0.0)]
)
def test_fold_over_nothing(library: Library, name: str, identity: float) -> None:
    result = torch.full((40,), 5.0)
    _call(library, name, [torch.empty(0), result], [0, 40] if name.startswith("column") else [40, 0])
    assert torch.equal(result, torch.full((40,), identity))


def test_statistics_of_nothing(library: Library) -> None:
    mean, squares = torch.ones(3), torch.ones(3)
    _call(library, "row_welford", [torch.empty(0), mean, squares], [3, 0])
    assert mean.isnan().all() and (squares == 0).all()


def test_no_point_reads_nothing(library: Library) -> None:
    """The first element is read once for all points: with no points there may be no such element."""
    empty = torch.empty(0)
    assert empty.data_ptr() == 0
    _call(library, "shifted", [empty, torch.empty(0, dtype=torch.bool), empty], [0])


@pytest.mark.parametrize("name", ["row_sum", "column_sum"])
@pytest.mark.parametrize("length", [100_000, 1_500_001])
def test_long_sums_are_as_accurate_as_eager(library: Library, name: str, length: int) -> None:
    dimension = 0 if name == "column_sum" else 1
    sizes = [length, 2] if dimension == 0 else [2, length]
    values = torch.rand(sizes, generator=torch.Generator().manual_seed(length)) + 1.0
    result, exact = torch.empty(2), values.double().sum(dimension)
    _call(library, name, [values, result], sizes)
    error, eager = (result - exact).abs().max(), (values.sum(dimension) - exact).abs().max()
    assert error <= max(eager, exact.max() * 2**-24)


@pytest.mark.parametrize("name", ["row_welford", "column_welford"])
def test_statistics_far_from_zero_keep_their_digits(library: Library, name: str) -> None:
    dimension = 0 if name == "column_welford" else 1
    sizes = [50_000, 3] if dimension == 0 else [3, 50_000]
    values = torch.randn(sizes, generator=torch.Generator().manual_seed(1)) + 1000.0
    mean, squares = torch.empty(3), torch.empty(3)
    _call(library, name, [values, mean, squares], sizes)
    exact = values.double()
    torch.testing.assert_close(mean.double(), exact.mean(dimension), rtol=2e-7, atol=0)
    expected = exact.var(dimension, correction=0) * 50_000
    torch.testing.assert_close(squares.double(), expected, rtol=2e-7, atol=0)


def test_running_sums_do_not_drift(library: Library) -> None:
    values = torch.rand(1, 200_000) + 1.0
    result = torch.empty_like(values)
    _call(library, "cumsum_rows", [values, result], [1, 200_000])
    exact = values.double().cumsum(1)
    assert ((result - exact).abs() <= exact * 2**-24).all()


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf, -0.0])
@pytest.mark.parametrize("place", [0, 3, 31, 70])
def test_special_values_in_folds(library: Library, special: float, place: int) -> None:
    values = torch.randn(71, generator=torch.Generator().manual_seed(2))
    values[place] = special
    largest, position = torch.empty(1), torch.empty(1, dtype=torch.int64)
    _call(library, "row_max", [values, largest], [1, 71])
    _call(library, "row_argmax", [values, position], [1, 71])
    torch.testing.assert_close(largest[0], values.max(), equal_nan=True, rtol=0, atol=0)
    assert position[0] == values.argmax()
    columns, where = torch.empty(1), torch.empty(1, dtype=torch.int64)
    _call(library, "column_max", [values, columns], [71, 1])
    _call(library, "column_argmin", [values, where], [71, 1])
    torch.testing.assert_close(columns[0], values.max(), equal_nan=True, rtol=0, atol=0)
    assert where[0] == values.argmin()


def test_first_of_equal_extremes_wins(library: Library) -> None:
    for first, second in ((5, 70), (64, 65), (3, 35), (0, 70), (40, 68)):
        values = torch.zeros(71)
        values[first] = values[second] = 9.0
        position = torch.empty(1, dtype=torch.int64)
        _call(library, "row_argmax", [values, position], [1, 71])
        assert position[0] == first
        values[first] = values[second] = math.nan
        _call(library, "row_argmax", [values, position], [1, 71])
        assert position[0] == first


@pytest.mark.parametrize("values", [[-math.inf] * 3, [math.inf, 0.0, math.inf], [0.0, math.nan, 1.0], [1e4, -1e4, 1e4]])
def test_running_logarithms_of_special_values(library: Library, values: list[float]) -> None:
    given = torch.tensor([values])
    result = torch.empty_like(given)
    _call(library, "logcumsumexp_rows", [given, result], [1, 3])
    torch.testing.assert_close(result, torch.logcumsumexp(given, 1), equal_nan=True)


def test_many_points_are_shared_by_threads(library: Library) -> None:
    """More pieces than threads, and a piece that is smaller."""
    values, result = torch.randn(100_001), torch.empty(100_001)
    _call(library, "tiled", [values, result], [100_001, 1001])
    assert torch.equal(result, values + 1)
