"""Elementary functions: units in the last place from float64, special values as eager's, doubles as libm's."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from header_levels import call, compiled, level_name, levels

_LIMITS = {
    "exp": 1.1,
    "exp2": 1.2,
    "expm1": 1.6,
    "log": 1.0,
    "log2": 1.5,
    "log10": 2.0,
    "log1p": 1.6,
    "sin": 1.7,
    "cos": 1.7,
    "tan": 4.0,
    "asin": 2.3,
    "acos": 1.3,
    "atan": 1.6,
    "sinh": 2.3,
    "cosh": 1.6,
    "tanh": 2.4,
    "asinh": 2.0,
    "acosh": 2.5,
    "atanh": 2.3,
    "erf": 1.5,
    "erfc": 4.0,
    "sigmoid": 2.5,
}
"""Units in the last place that floats may be off, over the whole range."""

_SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1e-30, -1e-30, 3e38, -3e38, 1e10, -1e10, 40.0, -40.0]
_SPECIAL += [float("inf"), -float("inf"), float("nan"), 1e-45, -1e-45, 1e-40, -1e-40, 1.2e-38, 86.0, -86.0]
_SPECIAL += [127.5, -127.5, 3.0, -3.0, 0.25, -0.25]

_EAGER_IS_WRONG = {"log1p": 1e-38, "expm1": 1e-38}
"""Eager flushes smaller numbers than these to zero."""


def _text(name: str) -> str:
    return "".join(
        f"void {name}_{kind}({kind}* v, {kind}* s, const {kind}* a, i64 n) {{\n"
        f"    for (i64 i = 0; i < n; i += lanes) store(v + i, {name}_(load<{kind}>(a + i)));\n"
        f"    for (i64 i = 0; i < n; ++i) s[i] = {name}_(a[i]);\n}}\n"
        for kind in ("float", "double")
    )


def _binary(name: str) -> str:
    return "".join(
        f"void {name}_{kind}({kind}* v, {kind}* s, const {kind}* a, const {kind}* b, i64 n) {{\n"
        f"    for (i64 i = 0; i < n; i += lanes) store(v + i, {name}_(load<{kind}>(a + i), load<{kind}>(b + i)));\n"
        f"    for (i64 i = 0; i < n; ++i) s[i] = {name}_(a[i], b[i]);\n}}\n"
        for kind in ("float", "double")
    )


_SOURCE = "".join(map(_text, _LIMITS)) + _binary("pow") + _binary("atan2") + "i64 lane_count() { return lanes; }"
_OWN_LANES = levels()[0].vector_bytes // 4


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads that wait for a busy machine's cores cost more than they bring here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=levels(), ids=level_name)
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return compiled(_SOURCE, request.param)


def _floats(count: int) -> torch.Tensor:
    """Round numbers, where pieces meet, and their neighbours; random bits, which are numbers of every exponent; dense
    samples where functions change."""
    torch.manual_seed(5)
    seams = torch.arange(-4096, 4097) / 64
    seams = torch.cat([seams, *(torch.nextafter(seams, torch.tensor(end)) for end in (-math.inf, math.inf))])
    every = torch.randint(-(2**31), 2**31, (count,)).to(torch.int32).view(torch.float32)
    dense = [torch.empty(count // 4).uniform_(-limit, limit) for limit in (0.5, 1.3, 5.0, 20.0, 110.0)]
    return torch.cat([seams, every, *dense, 1 + torch.empty(count // 8).uniform_(-0.01, 0.01)])


def _distance(actual: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Units in the last place between floats and exact values; overflow may come half a unit early or late."""
    nearest = exact.float()
    spacing = np.spacing(nearest.abs().clamp(1e-45, 3.4e38).numpy()).astype(np.float64)
    distance = (actual.double() - exact).abs() / torch.from_numpy(spacing)
    same = (actual == nearest) | (actual.isnan() & nearest.isnan())
    at_the_end = (actual.abs() >= 3.4028233e38) & (nearest.abs() >= 3.4028233e38) & (actual.sign() == nearest.sign())
    settled = (same & ~nearest.isfinite()) | at_the_end
    return torch.where(settled, torch.zeros_like(distance), distance).nan_to_num(nan=float("inf"))


def _worst(actual: torch.Tensor, exact: torch.Tensor, *given: torch.Tensor) -> tuple[float, str]:
    distance = _distance(actual, exact)
    place = int(distance.argmax())
    values = [x[place].item() for x in given]
    return distance[place].item(), f"{values}: {actual[place].item()!r}, exact {exact[place].item()!r}"


@pytest.mark.sampled(23)
@pytest.mark.parametrize("name", _LIMITS)
def test_floats_are_within_their_limit_over_the_whole_range(library: ctypes.CDLL, name: str) -> None:
    # More than a million where the code is this machine's own.
    floats = _floats(2**19 if library.lane_count() == _OWN_LANES else 2**16)
    if name == "sigmoid":
        # Below this exp overflows, in eager as well, and the result is 0 instead of a denormal.
        floats = floats[~(floats < -88)]
    floats = floats[: floats.numel() // 16 * 16].clone()
    vector, scalar = torch.empty_like(floats), torch.empty_like(floats)
    call(library, f"{name}_float", vector, scalar, floats, floats.numel())
    exact = getattr(torch, name)(floats.double())
    for actual, count in ((vector, floats.numel()), (scalar, 2**16)):
        worst, where = _worst(actual[:count], exact[:count], floats)
        assert worst <= _LIMITS[name], where


@pytest.mark.sampled(23)
@pytest.mark.parametrize("name", _LIMITS)
def test_special_floats_are_eagers(library: ctypes.CDLL, name: str) -> None:
    given = torch.tensor(_SPECIAL)
    vector, scalar = torch.empty_like(given), torch.empty_like(given)
    call(library, f"{name}_float", vector, scalar, given, given.numel())
    function: Callable[[torch.Tensor], torch.Tensor] = getattr(torch, name)
    exact = function(given.double()).float()
    small = (given.abs() < _EAGER_IS_WRONG.get(name, 0.0)) & (given != 0)
    expected = torch.where(small, exact, function(given))
    for actual in (vector, scalar):
        near = torch.isclose(actual, expected, rtol=6e-7, atol=3e-45, equal_nan=True)
        signed = (actual.signbit() == expected.signbit()) | expected.isnan()
        wrong = (~(near & signed)).nonzero()[:, 0]
        assert not wrong.numel(), [(given[i].item(), actual[i].item(), expected[i].item()) for i in wrong]


@pytest.mark.sampled(23)
@pytest.mark.parametrize("name", _LIMITS)
def test_doubles_are_the_c_librarys(library: ctypes.CDLL, name: str) -> None:
    torch.manual_seed(2)
    given = torch.cat([torch.tensor(_SPECIAL), torch.randn(256), torch.randn(224) * 50]).double()
    vector, scalar = torch.empty_like(given), torch.empty_like(given)
    call(library, f"{name}_double", vector, scalar, given, given.numel())
    expected = getattr(torch, name)(given)
    assert torch.equal(vector.nan_to_num(nan=7.5), scalar.nan_to_num(nan=7.5))
    torch.testing.assert_close(vector, expected, rtol=2e-14, atol=1e-300, equal_nan=True)


def _pairs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(9)
    bits = torch.randint(-(2**31), 2**31, (2, 2**16)).to(torch.int32).view(torch.float32)
    base = torch.cat([bits[0].abs(), torch.rand(2**16) * 5, 1 + (torch.rand(2**16) - 0.5) / 50, bits[0]])
    power = torch.cat([torch.randn(2**16) * 3, torch.randn(2**16) * 30, torch.randn(2**16) * 4000, bits[1]])
    return base, power


@pytest.mark.parametrize(("name", "limit"), [("pow", 0.6), ("atan2", 1.6)])
def test_functions_of_two_floats(library: ctypes.CDLL, name: str, limit: float) -> None:
    a, b = _pairs()
    vector, scalar = torch.empty_like(a), torch.empty_like(a)
    call(library, f"{name}_float", vector, scalar, a, b, a.numel())
    exact = getattr(torch, name)(a.double(), b.double())
    for actual in (vector, scalar):
        worst, where = _worst(actual, exact, a, b)
        assert worst <= limit, where


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("name", ["pow", "atan2"])
def test_special_pairs_are_eagers(library: ctypes.CDLL, name: str, kind: str) -> None:
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1.5, -2.5, 1e-40, 3e38, -3e38, 16777217.0]
    values += [float("inf"), -float("inf"), float("nan"), 1e-45]
    dtype = torch.float32 if kind == "float" else torch.float64
    a, b = (
        side.reshape(-1).contiguous()
        for side in torch.meshgrid(*[torch.tensor(values, dtype=dtype)] * 2, indexing="ij")
    )
    vector, scalar = torch.empty_like(a), torch.empty_like(a)
    call(library, f"{name}_{kind}", vector, scalar, a, b, a.numel())
    expected = getattr(torch, name)(a, b)
    for actual in (vector, scalar):
        near = torch.isclose(actual, expected, rtol=4e-7, atol=3e-45, equal_nan=True)
        signed = (actual.signbit() == expected.signbit()) | expected.isnan()
        wrong = (~(near & signed)).nonzero()[:, 0]
        assert not wrong.numel(), [(a[i], b[i], actual[i], expected[i]) for i in wrong]
