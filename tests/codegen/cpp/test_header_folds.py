"""Folds over lanes, running statistics, positions of extremes and atomic updates of ``reduce.hpp``."""

from __future__ import annotations

import threading

import pytest
import torch
from header_levels import C_NAMES, call, compiled, level_name, levels

_KINDS = ("float", "double", "i32", "i64")
_TORCH = {name: dtype for dtype, name in C_NAMES.items()}

_PER_KIND = """
void folds_KIND(KIND* out, const KIND* in) {
    const auto value = load<KIND>(in);
    out[0] = reduce_sum(value);
    out[1] = reduce_prod(value);
    out[2] = reduce_max(value);
    out[3] = reduce_min(value);
}
void running_KIND(KIND* out, const KIND* in, i64 n) {
    Vec<KIND> sum = broadcast<KIND>(0), product = broadcast<KIND>(1);
    Vec<KIND> most = broadcast<KIND>(in[0]), least = most;
    for (i64 i = 0; i < n; i += lanes) {
        const auto value = load_partial<KIND>(in + i, n - i);
        store_partial(out + i, running_sum(sum, value, 0), n - i);
        store_partial(out + n + i, running_prod(product, value, 1), n - i);
        store_partial(out + 2 * n + i, running_max(most, value, -9), n - i);
        store_partial(out + 3 * n + i, running_min(least, value, 9), n - i);
    }
}
void argmax_KIND(i64* out, const KIND* in, i64 n) {
    ArgBestVec<KIND, true> most;
    ArgBestVec<KIND, false> least;
    ArgBest<KIND, true> most_scalar;
    ArgBest<KIND, false> least_scalar;
    for (i64 i = 0; i < n; i += lanes) {
        most.add_partial(load_partial<KIND>(in + i, n - i), iota<i64>(i), n - i);
        least.add_partial(load_partial<KIND>(in + i, n - i), iota<i64>(i), n - i);
    }
    for (i64 i = 0; i < n; ++i) {
        most_scalar.add(in[i], i);
        least_scalar.add(in[i], i);
    }
    out[0] = most.total().position;
    out[1] = least.total().position;
    out[2] = most_scalar.position;
    out[3] = least_scalar.position;
}
"""
_WELFORD = """
void welford_KIND(KIND* out, const KIND* in, i64 n) {
    WelfordVec<KIND> first, second;
    WelfordScalar<KIND> scalar, half;
    i64 i = 0;
    for (; i + lanes <= n; i += lanes) first.add(load<KIND>(in + i));
    if (i < n) second.add_partial(load_partial<KIND>(in + i, n - i), n - i);
    first.combine(second);
    for (i64 k = 0; k < n; ++k) (k % 2 ? half : scalar).add(in[k]);
    scalar.combine(half);
    const auto whole = first.total().finish(), other = scalar.finish();
    out[0] = whole.mean;
    out[1] = whole.squares;
    out[2] = other.mean;
    out[3] = other.squares;
    const auto each = first.finish();
    store(out + 4, each.mean);
    store(out + 4 + lanes, each.squares);
}
"""
_SOURCE = (
    "".join(_PER_KIND.replace("KIND", kind) for kind in _KINDS)
    + _WELFORD.replace("KIND", "float")
    + _WELFORD.replace("KIND", "double")
    + """
i64 lane_count() { return lanes; }
void truths(u8* out, const u8* in) {
    out[0] = reduce_any(load_mask(in));
    out[1] = reduce_all(load_mask(in));
}
void add_often(float* a, i64* b, bf16* c, f16* d, i64 n) {
    for (i64 i = 0; i < n; ++i) {
        atomic_add(a, 1.0f);
        atomic_add(b, i64(1));
        atomic_add(c, 0.0f);
        atomic_add(d, i < 100 ? 1.0f : 0.0f);
    }
}
"""
)
_LEVELS = pytest.mark.parametrize("features", levels(), ids=level_name)


@_LEVELS
@pytest.mark.parametrize("kind", _KINDS)
def test_lanes_fold_to_what_torch_gives(features, kind: str) -> None:  # type: ignore[no-untyped-def]
    library = compiled(_SOURCE, features)
    lanes, dtype = library.lane_count(), _TORCH[kind]
    torch.manual_seed(0)
    for _ in range(20):
        values = torch.randint(1, 4, (lanes,)).to(dtype) * torch.tensor([1, -1] * (lanes // 2)).to(dtype)
        out = torch.empty(4, dtype=dtype)
        call(library, f"folds_{kind}", out, values)
        assert out.tolist() == [values.sum(), values.prod(), values.max(), values.min()]


@_LEVELS
@pytest.mark.parametrize("kind", _KINDS)
def test_results_run_along_the_lanes(features, kind: str) -> None:  # type: ignore[no-untyped-def]
    library, dtype = compiled(_SOURCE, features), _TORCH[kind]
    torch.manual_seed(0)
    for count in (1, 7, 16, 37, 64):
        # Few factors of 2: all products are exact.
        values = torch.where(torch.rand(count) < 0.3, 2, 1).to(dtype) * torch.where(torch.rand(count) < 0.5, -1, 1)
        values = values.to(dtype)
        out = torch.empty(4 * count, dtype=dtype)
        call(library, f"running_{kind}", out, values, count)
        expected = (values.cumsum(0), values.cumprod(0), values.cummax(0).values, values.cummin(0).values)
        assert out.tolist() == torch.cat([item.to(dtype) for item in expected]).tolist()


@_LEVELS
def test_a_nan_stays_in_running_results_and_none_comes_early(features) -> None:  # type: ignore[no-untyped-def]
    library = compiled(_SOURCE, features)
    for lane in range(33):
        values, out = torch.linspace(0.5, 1, 37), torch.empty(4, 37)
        values[lane] = float("nan")
        call(library, "running_float", out, values, 37)
        assert not out[:2, :lane].isnan().any() and (lane == 0 or not out[2:, :lane].isnan().any())
        assert out[:, lane:].isnan().all()


@pytest.mark.sampled(3)
@_LEVELS
@pytest.mark.parametrize("kind", ["float", "double"])
def test_one_nan_in_any_lane_is_the_extreme(features, kind: str) -> None:  # type: ignore[no-untyped-def]
    library = compiled(_SOURCE, features)
    lanes, dtype = library.lane_count(), _TORCH[kind]
    for lane in range(lanes):
        values, out = torch.arange(lanes).to(dtype), torch.empty(4, dtype=dtype)
        values[lane] = float("nan")
        call(library, f"folds_{kind}", out, values)
        assert out.isnan().all()


@_LEVELS
def test_any_and_all_see_every_lane(features) -> None:  # type: ignore[no-untyped-def]
    library = compiled(_SOURCE, features)
    lanes = library.lane_count()
    for lane in range(lanes + 1):
        values, out = torch.zeros(lanes + 1, dtype=torch.uint8), torch.empty(2, dtype=torch.uint8)
        values[lane] = 4
        call(library, "truths", out, values)
        assert out.tolist() == [lane < lanes, False]
        call(library, "truths", out, 1 - values.clamp(max=1))
        assert out.tolist() == [True, lane == lanes]


@pytest.mark.sampled(5)
@_LEVELS
@pytest.mark.parametrize("kind", _KINDS)
def test_positions_are_those_of_the_first_extreme(features, kind: str) -> None:  # type: ignore[no-untyped-def]
    library, dtype = compiled(_SOURCE, features), _TORCH[kind]
    torch.manual_seed(0)
    cases = [torch.randint(-3, 3, (count,)).to(dtype) for count in (1, 2, 5, 15, 16, 17, 40, 100)]
    if dtype.is_floating_point:
        with_nan = cases[-1].clone()
        with_nan[[37, 60]] = float("nan")
        cases += [torch.full((33,), -float("inf"), dtype=dtype), torch.full((33,), float("inf"), dtype=dtype), with_nan]
    for values in cases:
        out = torch.empty(4, dtype=torch.int64)
        call(library, f"argmax_{kind}", out, values, values.numel())
        assert out.tolist() == [values.argmax(), values.argmin()] * 2


@_LEVELS
@pytest.mark.parametrize("kind", ["float", "double"])
def test_statistics_are_as_near_as_the_type_allows(features, kind: str) -> None:  # type: ignore[no-untyped-def]
    library, dtype = compiled(_SOURCE, features), _TORCH[kind]
    epsilon = torch.finfo(dtype).eps
    torch.manual_seed(0)
    for count in (1, 3, 16, 17, 100, 1000):
        values = (torch.randn(count, dtype=torch.float64) + 100).to(dtype)
        out = torch.empty(64, dtype=dtype)
        call(library, f"welford_{kind}", out, values, count)
        exact = values.double()
        squares = (exact - exact.mean()).square().sum()
        for mean, found in ((out[0], out[1]), (out[2], out[3])):
            assert abs(mean.double() - exact.mean()) <= 8 * epsilon * 100
            # Every distance is off by a rounding of the values' size.
            assert abs(found.double() - squares) <= 16 * epsilon * (squares + 100 * squares.sqrt() * count**0.5)


@_LEVELS
def test_statistics_over_nothing_are_nan_and_zero(features) -> None:  # type: ignore[no-untyped-def]
    library = compiled(_SOURCE, features)
    lanes, out = library.lane_count(), torch.empty(64)
    call(library, "welford_float", out, out, 0)
    assert out[[0, 2]].isnan().all() and not out[[1, 3]].any()
    assert out[4 : 4 + lanes].isnan().all() and not out[4 + lanes : 4 + 2 * lanes].any()
    call(library, "welford_float", out, torch.full((1,), 5.0), 1)
    assert out[:4].tolist() == [5, 0, 5, 0]
    assert out[4] == 5 and out[5 : 4 + lanes].isnan().all()


def test_atomic_additions_of_many_threads_all_arrive() -> None:
    library = compiled(_SOURCE, levels()[0])
    a, b = torch.zeros(1), torch.zeros(1, dtype=torch.int64)
    c, d = torch.ones(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.float16)
    threads = [threading.Thread(target=call, args=(library, "add_often", a, b, c, d, 100000)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (a.item(), b.item(), c.item(), d.item()) == (400000, 400000, 1, 400)
