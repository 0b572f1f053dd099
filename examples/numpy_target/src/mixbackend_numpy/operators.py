"""What printed code calls: scalar operators on arrays, loops as index arrays, memory with masks, folds.

Every function takes arrays or numpy scalars alike. Names of operators are those of ``SCALAR_OPS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = Any


def _divided(a: Array, b: Array) -> Array:
    """Floor division; by zero gives zero instead of a trap, as nothing reads such a lane."""
    if np.issubdtype(np.result_type(a, b), np.integer):
        return np.where(b == 0, 0, np.floor_divide(a, np.where(b == 0, 1, b)))
    return np.floor_divide(a, b)


def _truncated(a: Array, b: Array) -> Array:
    quotient = np.abs(a) // np.where(b == 0, 1, np.abs(b))
    return np.where((a < 0) != (b < 0), -quotient, quotient)


def _shifted_left(a: Array, b: Array) -> Array:
    bits = np.asarray(a).dtype.itemsize * 8
    inside = (b >= 0) & (b < bits)
    return np.where(inside, np.left_shift(a, np.where(inside, b, 0)), 0)


def _shifted_right(a: Array, b: Array) -> Array:
    bits = np.asarray(a).dtype.itemsize * 8
    return np.right_shift(a, np.where((b >= 0) & (b < bits), b, bits - 1))


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of Python's math module on arrays."""
    return lambda a: np.vectorize(function, otypes=[np.float64])(a).astype(np.asarray(a).dtype)


def _power(a: Array, b: Array) -> Array:
    if np.issubdtype(np.result_type(a, b), np.integer):
        whole = np.power(a, np.where(b < 0, 0, b))
        return np.where(b < 0, np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b % 2), 0)), whole)
    return np.power(a, b)


OPERATORS: Mapping[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floor_div": _divided,
    "trunc_div": _truncated,
    "remainder": lambda a, b: (
        np.where(b == 0, 0, np.remainder(a, np.where(b == 0, 1, b)))
        if np.issubdtype(np.result_type(a, b), np.integer)
        else np.remainder(a, b)
    ),
    "fmod": np.fmod,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "reciprocal": lambda a: (1 / a).astype(np.asarray(a).dtype),
    "sqrt": np.sqrt,
    "rsqrt": lambda a: (1 / np.sqrt(a)).astype(np.asarray(a).dtype),
    "copysign": np.copysign,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": _each(math.erf),
    "erfc": _each(math.erfc),
    "sigmoid": lambda a: (1 / (1 + np.exp(-a))).astype(np.asarray(a).dtype),
    "rough_sigmoid": lambda a: (1 / (1 + np.exp(-a))).astype(np.asarray(a).dtype),
    "rough_normal": _each(lambda a: 0.5 * math.erfc(-a * math.sqrt(0.5))),
    "pow": _power,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "round_float16": lambda a: np.asarray(a).astype(np.float16).astype(np.asarray(a).dtype),
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "isnan": np.isnan,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shift_left": _shifted_left,
    "shift_right": _shifted_right,
    "where": np.where,
}
"""Every scalar operator but ``round_bfloat16`` (numpy has no such type) and ``to_dtype`` (printed as ``convert``)."""


def convert(value: Array, dtype: Any) -> Array:
    """Convert between compute types."""
    return np.asarray(value).astype(dtype)


def grid(*extents: int) -> tuple[Array, ...]:
    """One flat index array per loop, all points in row-major order."""
    return tuple(axis.reshape(-1) for axis in np.indices(extents, dtype=np.int64))


def load(buffer: Array, offset: Array, dtype: Any, mask: Array | None = None, other: Any = 0) -> Array:
    """Elements of a buffer in a compute type; nothing is read where the mask is false."""
    if mask is None:
        return buffer[offset].astype(dtype)
    inside = np.broadcast_to(mask, np.broadcast_shapes(np.shape(offset), np.shape(mask)))
    if not buffer.size:
        return np.full(inside.shape, other, dtype)
    return np.where(inside, buffer[np.where(inside, offset, 0)].astype(dtype), np.asarray(other, dtype))


_COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def store(buffer: Array, offset: Array, value: Array, mode: str, mask: Array | None = None) -> None:
    """Write elements, in order where several go to one place."""
    shape = np.broadcast_shapes(np.shape(offset), np.shape(value), np.shape(mask) if mask is not None else ())
    offset, value = np.broadcast_to(offset, shape), np.broadcast_to(value, shape)
    if mask is not None:
        kept = np.broadcast_to(mask, shape)
        offset, value = offset[kept], value[kept]
    if mode == "set":
        buffer[offset] = value
    elif buffer.dtype == np.bool_ and mode == "add":
        np.logical_or.at(buffer, offset, value)
    else:
        _COMBINE[mode].at(buffer, offset, value)


def fold(kind: str, value: Array, count: int) -> tuple[Array, ...]:
    """All values of the reduced loops, folded; see ``ReductionKind``."""
    values = np.broadcast_to(value, (count,)) if np.ndim(value) == 0 else value
    dtype = values.dtype
    if kind in ("argmax", "argmin"):
        return (np.int64(getattr(np, kind)(values)),)
    if kind == "welford":
        mean = values.mean(dtype=np.float64) if count else np.nan
        squares = np.square(values - mean).sum(dtype=np.float64) if count else 0.0
        return dtype.type(mean), dtype.type(squares)
    functions = {"sum": np.sum, "prod": np.prod, "any": np.any, "all": np.all, "max": np.max, "min": np.min}
    folded = functions[kind](values) if kind in ("any", "all", "max", "min") else functions[kind](values, dtype=dtype)
    return (np.asarray(folded).astype(dtype)[()],)


def _log_of_sum(state: Array, value: Array) -> Array:
    return np.logaddexp(state, value)


CARRY: Mapping[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "logsumexp": _log_of_sum,
}
"""One step of a scan."""
