"""Conversions between types, held against eager torch."""

from __future__ import annotations

import itertools

import pytest
import torch
from header_levels import C_NAMES, call, compiled, level_name, levels
from header_values import assert_same, float_edges, integer_edges

_LEVELS = pytest.mark.parametrize("features", levels(), ids=level_name)


def _conversion_text() -> str:
    text = ""
    for source, target in itertools.product(C_NAMES.values(), repeat=2):
        compute = {"f16": "float", "bf16": "float", "i8": "i32", "u8": "i32", "i16": "i32"}.get(source, source)
        text += (
            f"void to_{source}_{target}({target}* v, {target}* s, const {source}* a, i64 n) {{\n"
            f"    for (i64 i = 0; i < n; i += lanes) store(v + i, convert<{target}>(load<{compute}>(a + i)));\n"
            f"    for (i64 i = 0; i < n; ++i) {{\n"
            f"        store_scalar(s + i, convert<{target}>(load_scalar<{compute}>(a + i)));\n    }}\n}}\n"
        )
    for name in C_NAMES.values():
        compute = {"f16": "float", "bf16": "float", "i8": "i32", "u8": "i32", "i16": "i32"}.get(name, name)
        text += (
            f"void truth_{name}(u8* v, {name}* back, const {name}* a, i64 n) {{\n"
            f"    for (i64 i = 0; i < n; i += lanes) {{\n"
            f"        const Mask mask = convert<bool>(load<{compute}>(a + i));\n"
            f"        store_mask(v + i, mask);\n        store(back + i, convert<{compute}>(mask));\n    }}\n}}\n"
        )
    return text


@pytest.mark.sampled(11)
@_LEVELS
@pytest.mark.parametrize("source", C_NAMES, ids=str)
def test_conversions_are_eagers(features, source: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    library = compiled(_conversion_text(), features)
    values = (
        float_edges(torch.float64).to(source) if source.is_floating_point else integer_edges(torch.int64).to(source)
    )
    values = values[: values.numel() // 16 * 16].clone()
    for target, name in C_NAMES.items():
        given = values
        if source.is_floating_point and not target.is_floating_point:
            # Out of range C++ leaves the result open, and eager's varies with the position in the tensor.
            limits = torch.iinfo(target)
            given = torch.where(values.double().abs() < min(limits.max, 2**62), values, torch.ones_like(values))
            given = torch.where((given < 0) & (limits.min == 0), -given, given)
        vector, scalar = torch.empty_like(given, dtype=target), torch.empty_like(given, dtype=target)
        call(library, f"to_{C_NAMES[source]}_{name}", vector, scalar, given, given.numel())
        assert_same(vector, given.to(target), given)
        assert_same(scalar, given.to(target), given)
    truth, back = torch.empty_like(values, dtype=torch.bool), torch.empty_like(values)
    call(library, f"truth_{C_NAMES[source]}", truth, back, values, values.numel())
    assert torch.equal(truth, values.bool())
    assert torch.equal(back, values.bool().to(source))


_SIXTEEN_BITS = """
void widen_f16(float* v, float* s, const f16* a, i64 n) {
    for (i64 i = 0; i < n; i += lanes) store(v + i, load<float>(a + i));
    for (i64 i = 0; i < n; ++i) s[i] = load_scalar<float>(a + i);
}
void narrow_f16(f16* v, f16* s, const float* a, i64 n) {
    for (i64 i = 0; i < n; i += lanes) store(v + i, load<float>(a + i));
    for (i64 i = 0; i < n; ++i) store_scalar(s + i, a[i]);
}
void narrow_bf16(bf16* v, bf16* s, const float* a, i64 n) {
    for (i64 i = 0; i < n; i += lanes) store(v + i, load<float>(a + i));
    for (i64 i = 0; i < n; ++i) store_scalar(s + i, a[i]);
}
"""


@pytest.mark.sampled(1)
@_LEVELS
def test_every_float16_widens_and_a_million_floats_round_as_in_eager(features) -> None:  # type: ignore[no-untyped-def]
    library = compiled(_SIXTEEN_BITS, features)
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    vector, scalar = torch.empty(2**16), torch.empty(2**16)
    call(library, "widen_f16", vector, scalar, every, 2**16)
    assert_same(vector, every.float(), every)
    assert_same(scalar, every.float(), every)
    torch.manual_seed(3)
    bits = torch.randint(-(2**31), 2**31, (2**20,)).to(torch.int32).view(torch.float32)
    near = torch.randn(2**18) * torch.tensor([1e-8, 1e-6, 1e-3, 1.0, 1e3, 3e4, 1e5, 1.0]).repeat(2**15)
    floats = torch.cat([bits, near])
    for name, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        packed, single = torch.empty_like(floats, dtype=dtype), torch.empty_like(floats, dtype=dtype)
        call(library, f"narrow_{name}", packed, single, floats, floats.numel())
        assert_same(packed, floats.to(dtype), floats)
        assert_same(single, floats.to(dtype), floats)
