"""Types of operands: torch's promotion, conversions and constants.

Place: used by rules; below them is only ``ir.scalar``.
Invariants: ``result_type`` agrees with ``torch.result_type``; ``convert`` gives what ``Tensor.to`` gives, rounding
included; a constant has the value that eager would compute with.
"""

from __future__ import annotations

import functools
from typing import Literal, Union

import sympy
import torch

from mixbackend.backends.codegen.ir.scalar import (
    ROUNDING,
    Constant,
    Expr,
    IndexValue,
    as_stored,
    cast,
    compute_dtype,
)
from mixbackend.backends.codegen.lower.rules import RefusedError
from mixbackend.backends.codegen.lower.tensor import Tensor

Number = Union[int, float, bool, sympy.Expr]
"""A Python number, or a symbolic one: an integer expression over sizes, or the symbol of a floating number."""
Operand = Union[Tensor, Number]

_Kind = Literal["tensor", "scalar tensor", "number"]
_EXACT_IN_HALF = {
    torch.float16: frozenset({torch.float16, torch.bool, torch.int8, torch.uint8}),
    torch.bfloat16: frozenset({torch.bfloat16, torch.bool, torch.int8, torch.uint8}),
}


def result_type(*operands: Operand) -> torch.dtype:
    """Type in which an op on these operands is done: ``torch.result_type`` of all of them.

    Raises:
        RefusedError: a complex number.
    """
    return _combined(tuple((dtype_of(operand), _kind(operand)) for operand in operands), torch.get_default_dtype())


def dtype_of(operand: Operand) -> torch.dtype:
    """Storage type of a tensor; for a number, the type torch gives a tensor made of it.

    Raises:
        RefusedError: a complex number.
    """
    if isinstance(operand, Tensor):
        return operand.dtype
    if isinstance(operand, bool):
        return torch.bool
    if isinstance(operand, int):
        return torch.int64
    if isinstance(operand, float):
        return torch.get_default_dtype()
    if isinstance(operand, sympy.Expr):
        return torch.int64 if operand.is_integer else torch.get_default_dtype()
    raise RefusedError("argument", f"{operand!r} is no real number")


def _kind(operand: Operand) -> _Kind:
    if not isinstance(operand, Tensor):
        return "number"
    return "tensor" if operand.rank else "scalar tensor"


@functools.lru_cache(maxsize=4096)
def _combined(operands: tuple[tuple[torch.dtype, _Kind], ...], default: torch.dtype) -> torch.dtype:
    """Tensors with dimensions rule, then those without, then numbers: a lower kind only lifts the category."""
    result: torch.dtype | None = None
    for kind in ("tensor", "scalar tensor", "number"):
        own = [dtype for dtype, its_kind in operands if its_kind == kind]
        if not own:
            continue
        lower = functools.reduce(torch.promote_types, own)
        if result is None or _category(lower) > _category(result):
            result = lower if result is None else torch.promote_types(result, lower)
    assert result is not None
    return result


def _category(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    if dtype.is_floating_point:
        return 2
    return 0 if dtype == torch.bool else 1


def convert(value: Expr, source: torch.dtype, target: torch.dtype) -> Expr:
    """A value stored as ``source``, converted to ``target`` and widened to its compute type.

    Rounds to 16-bit types where the source has more digits. A 16-bit source that becomes an integer or a truth value
    is rounded first: the digits that a fused value has beyond its type would decide on another integer than eager's.
    """
    if source == target:
        return value
    wide = compute_dtype(target)
    if not wide.is_floating_point:
        value = as_stored(value, source)
    converted = cast(value, wide)
    return converted if source in _EXACT_IN_HALF.get(target, ()) else as_stored(converted, target)


def constant(value: Number, dtype: torch.dtype) -> Expr:
    """A number in the compute type of ``dtype``; not rounded to 16 bits, as eager keeps numbers in the wide type.

    Raises:
        RefusedError: a complex number, or a number that only the run knows where an integer is needed.
    """
    wide = compute_dtype(dtype)
    if isinstance(value, sympy.Expr) and not value.is_number:
        if not value.is_integer and not (value.is_Symbol and wide.is_floating_point):
            raise RefusedError("argument", f"the number {value} is known at run time only")
        return IndexValue(wide, value)
    if isinstance(value, sympy.Expr):
        value = int(value) if value.is_integer else float(value)
    if isinstance(value, complex):
        raise RefusedError("argument", f"{value!r} is no real number")
    if wide == torch.bool:
        return Constant(wide, bool(value))
    if wide.is_floating_point:
        return Constant(wide, float(value))
    return Constant(wide, _wrapped(int(value), wide))


def rounded_constant(value: Number, dtype: torch.dtype) -> Expr:
    """A number as a tensor of ``dtype`` holds it: rounded to 16 bits too."""
    if dtype in ROUNDING and isinstance(value, (int, float)):
        return Constant(torch.float32, _rounded(float(value), dtype))
    return as_stored(constant(value, dtype), dtype)


@functools.lru_cache(maxsize=1024)
def _rounded(value: float, dtype: torch.dtype) -> float:
    return torch.tensor(value, dtype=torch.float32).to(dtype).item()


def _wrapped(value: int, dtype: torch.dtype) -> int:
    """An integer modulo the values of its type."""
    limits = torch.iinfo(dtype)
    return (value - limits.min) % (limits.max - limits.min + 1) + limits.min
