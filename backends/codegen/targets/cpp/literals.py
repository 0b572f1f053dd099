"""Names of types and numbers in C++.

Place: below everything that prints C++.
Invariants: a literal has exactly the value torch gives the constant in its type.
"""

from __future__ import annotations

import math

import torch

STORAGE: dict[torch.dtype, str] = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "u8",
}
"""Type of an element in memory; these are the types that can be loaded and stored."""

ARGUMENTS = "char** buffers, const i64* parameters, const double* numbers"
"""What a kernel works on."""


def function_head(name: str) -> str:
    """How the function of a kernel begins: ``Kernel`` of ``team.hpp``."""
    return f'extern "C" i64 {name}({ARGUMENTS}, const Team* team) {{'


_SMALL = (torch.int16, torch.int8, torch.uint8)


def conversion_type(dtype: torch.dtype) -> str:
    """Argument of ``convert`` that gives the compute type: small integers are wrapped to their range."""
    return "bool" if dtype == torch.bool else STORAGE[dtype]


def compute_type(dtype: torch.dtype) -> str:
    """Type of a value while it is computed: small integers live in 32 bits."""
    return "i32" if dtype in _SMALL else conversion_type(dtype)


def wraps(dtype: torch.dtype) -> bool:
    """Whether results of arithmetic have to be brought back into the range of the type."""
    return dtype in _SMALL


def vector_type(dtype: torch.dtype) -> str:
    """Type of ``lanes`` values."""
    return "Mask" if dtype == torch.bool else f"Vec<{compute_type(dtype)}>"


def literal(value: float, dtype: torch.dtype) -> str:
    """A constant of a compute type."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if dtype.is_floating_point:
        return _floating(value, dtype)
    number = int(torch.tensor(int(value), dtype=torch.int64).to(dtype).item())
    if dtype == torch.int64:
        return f"{number}ll" if number > torch.iinfo(dtype).min else f"({number + 1}ll - 1)"
    return str(number) if number > torch.iinfo(torch.int32).min else f"({number + 1} - 1)"


def _floating(value: float, dtype: torch.dtype) -> str:
    rounded = torch.tensor(value, dtype=torch.float64).to(dtype).item()
    suffix = "" if dtype == torch.float64 else "f"
    if math.isnan(rounded):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(rounded):
        return f"{'-' if rounded < 0 else ''}__builtin_inf{suffix}()"
    # A float32 printed with all digits of its float64 value is read back as itself.
    return f"{rounded!r}{suffix}"


def lowest(dtype: torch.dtype) -> str:
    """Identity of ``max``."""
    return literal(-math.inf if dtype.is_floating_point else torch.iinfo(dtype).min, dtype)


def highest(dtype: torch.dtype) -> str:
    """Identity of ``min``."""
    return literal(math.inf if dtype.is_floating_point else torch.iinfo(dtype).max, dtype)
