"""Types of elements as Triton names them, and constants of them.

Place: used by everything that prints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

NAMES: Mapping[torch.dtype, str] = {
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.int8: "tl.int8",
    torch.uint8: "tl.uint8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.bool: "tl.int1",
}
"""What the target loads and stores, and computes in."""

POINTERS: Mapping[torch.dtype, str] = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bool: "*i1",
}
"""Types of pointers in signatures of kernels."""


def literal(value: int | float | bool) -> str:
    """A number as it is written."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def lowest(dtype: torch.dtype) -> int | float:
    """What no value is below."""
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> int | float:
    """What no value is above."""
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max
