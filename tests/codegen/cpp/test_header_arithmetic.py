"""Arithmetic, comparisons, conversions, folds and running results of the headers, held against eager torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy
import pytest
import torch
from header_levels import C_NAMES, call, compiled, level_name, levels
from header_values import assert_same, float_edges, integer_edges

_F, _I = ("float", "double"), ("i32", "i64")
_ANY = (*_F, *_I)
_TORCH = {name: dtype for dtype, name in C_NAMES.items()}


def _nearest_root(a: torch.Tensor) -> torch.Tensor:
    with numpy.errstate(invalid="ignore"):
        return torch.from_numpy(numpy.sqrt(a.numpy()))


_BINARY: dict[str, tuple[tuple[str, ...], Callable[..., torch.Tensor]]] = {
    "add": (_ANY, torch.add),
    "sub": (_ANY, torch.sub),
    "mul": (_ANY, torch.mul),
    "div": (_F, torch.div),
    "floor_div": (_ANY, torch.floor_divide),
    "trunc_div": (_I, lambda a, b: torch.div(a, b, rounding_mode="trunc")),
    "remainder": (_ANY, torch.remainder),
    "fmod": (_ANY, torch.fmod),
    "minimum": (_ANY, torch.minimum),
    "maximum": (_ANY, torch.maximum),
    "copysign_": (_F, torch.copysign),
    "and_": (_I, torch.bitwise_and),
    "or_": (_I, torch.bitwise_or),
    "xor_": (_I, torch.bitwise_xor),
    "shift_left": (_I, torch.bitwise_left_shift),
    "shift_right": (_I, torch.bitwise_right_shift),
    "pow_": (_I, torch.pow),
}
_UNARY: dict[str, tuple[tuple[str, ...], Callable[..., torch.Tensor]]] = {
    "neg": (_ANY, torch.neg),
    "abs_": (_ANY, torch.abs),
    "sign": (_ANY, torch.sign),
    "reciprocal": (_F, torch.reciprocal),
    # Eager's vectors are a unit off; the processor's root is the nearest number.
    "sqrt_": (_F, _nearest_root),
    "floor_": (_F, torch.floor),
    "ceil_": (_F, torch.ceil),
    "trunc_": (_F, torch.trunc),
    "round_": (_F, torch.round),
    "not_": (_I, torch.bitwise_not),
    "round_float16": (("float",), lambda a: a.half().float()),
    "round_bfloat16": (("float",), lambda a: a.bfloat16().float()),
}
_COMPARISONS = {"eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge}


def _binary_text(name: str, kind: str) -> str:
    return (
        f"void {name}_{kind}({kind}* v, {kind}* s, const {kind}* a, const {kind}* b, i64 n) {{\n"
        f"    for (i64 i = 0; i < n; i += lanes) store(v + i, {name}(load<{kind}>(a + i), load<{kind}>(b + i)));\n"
        f"    for (i64 i = 0; i < n; ++i) s[i] = {name}(a[i], b[i]);\n}}\n"
    )


def _unary_text(name: str, kind: str) -> str:
    return (
        f"void {name}_{kind}({kind}* v, {kind}* s, const {kind}* a, i64 n) {{\n"
        f"    for (i64 i = 0; i < n; i += lanes) store(v + i, {name}(load<{kind}>(a + i)));\n"
        f"    for (i64 i = 0; i < n; ++i) s[i] = {name}(a[i]);\n}}\n"
    )


def _comparison_text(name: str, kind: str) -> str:
    return (
        f"void {name}_{kind}(u8* v, u8* s, const {kind}* a, const {kind}* b, i64 n) {{\n"
        f"    for (i64 i = 0; i < n; i += lanes) store_mask(v + i, {name}(load<{kind}>(a + i), load<{kind}>(b + i)));\n"
        f"    for (i64 i = 0; i < n; ++i) s[i] = {name}(a[i], b[i]);\n}}\n"
    )


_SOURCE = (
    "".join(_binary_text(name, kind) for name, (kinds, _) in _BINARY.items() for kind in kinds)
    + "".join(_unary_text(name, kind) for name, (kinds, _) in _UNARY.items() for kind in kinds)
    + "".join(_comparison_text(name, kind) for name in _COMPARISONS for kind in _ANY)
)

_LEVELS = pytest.mark.parametrize("features", levels(), ids=level_name)


def _pairs(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = _TORCH[kind]
    values = float_edges(dtype) if dtype.is_floating_point else integer_edges(dtype)
    a, b = (torch.tensor(side, dtype=dtype) for side in zip(*itertools.product(values.tolist(), repeat=2), strict=True))
    return a, b


def _legal(name: str, kind: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Pairs for which eager's answer is one to hold ours against."""
    if kind in _I and name in ("floor_div", "trunc_div", "remainder", "fmod"):
        lowest = torch.iinfo(a.dtype).min
        return (b != 0) & ~((a == lowest) & (b == -1))
    if kind in _F and name in ("remainder", "fmod"):
        # Beyond this quotient eager's vectors give up with NaN; the C library, and ours, stay exact.
        return ~((a / b).abs() > 2**20) | ~a.isfinite() | (b == 0)
    return torch.ones_like(a, dtype=torch.bool)


@pytest.mark.sampled(50)
@_LEVELS
@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, (kinds, _) in _BINARY.items() for kind in kinds])
def test_binary_functions_are_eagers(features, name: str, kind: str) -> None:  # type: ignore[no-untyped-def]
    a, b = _pairs(kind)
    legal = _legal(name, kind, a, b)
    a, b = a[legal], b[legal]
    count = a.numel() // 16 * 16
    a, b = a[:count].clone(), b[:count].clone()
    vector, scalar = torch.empty_like(a), torch.empty_like(a)
    call(compiled(_SOURCE, features), f"{name}_{kind}", vector, scalar, a, b, count)
    expected = _BINARY[name][1](a, b)
    assert_same(vector, expected, a, b)
    assert_same(scalar, expected, a, b)


@pytest.mark.sampled(29)
@_LEVELS
@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, (kinds, _) in _UNARY.items() for kind in kinds])
def test_unary_functions_are_eagers(features, name: str, kind: str) -> None:  # type: ignore[no-untyped-def]
    a, _ = _pairs(kind)
    a = a[: a.numel() // 16 * 16].clone()
    vector, scalar = torch.empty_like(a), torch.empty_like(a)
    call(compiled(_SOURCE, features), f"{name}_{kind}", vector, scalar, a, a.numel())
    expected = _UNARY[name][1](a)
    assert_same(vector, expected, a)
    assert_same(scalar, expected, a)


@pytest.mark.sampled(25)
@_LEVELS
@pytest.mark.parametrize("kind", _ANY)
@pytest.mark.parametrize("name", _COMPARISONS)
def test_comparisons_are_eagers(features, name: str, kind: str) -> None:  # type: ignore[no-untyped-def]
    a, b = _pairs(kind)
    count = a.numel() // 16 * 16
    a, b = a[:count].clone(), b[:count].clone()
    vector, scalar = torch.empty(count, dtype=torch.bool), torch.empty(count, dtype=torch.bool)
    call(compiled(_SOURCE, features), f"{name}_{kind}", vector, scalar, a, b, count)
    expected = _COMPARISONS[name](a, b)
    assert torch.equal(vector, expected)
    assert torch.equal(scalar, expected)


@_LEVELS
def test_an_integer_divided_by_zero_is_zero_and_nothing_traps(features) -> None:  # type: ignore[no-untyped-def]
    for kind, name in itertools.product(_I, ("floor_div", "trunc_div")):
        a, b = _pairs(kind)
        vector, scalar = torch.empty_like(a), torch.empty_like(a)
        call(compiled(_SOURCE, features), f"{name}_{kind}", vector, scalar, a, b, a.numel())
        assert torch.equal(vector, scalar)
        assert not vector[b == 0].any()
