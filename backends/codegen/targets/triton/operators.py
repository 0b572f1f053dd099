"""Scalar operators as Triton text.

Place: used by ``values``. Input: an operator, its types and the text of its arguments. Output: text.
Functions of floating numbers are those of the vendor's device library, which are as exact as eager's; Triton's own are
quicker, and too rough where their argument is large or their result near zero. What is rounded to 16 bits takes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from mixbackend.backends.codegen.ir.scalar import Apply
from mixbackend.backends.codegen.targets.triton.dtypes import NAMES

_ANY: Mapping[str, str] = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "neg": "(-{0})",
    "abs": "tl.abs({0})",
    "sign": "sign({0})",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
    "where": "tl.where({0}, {1}, {2})",
}
_FLOATING: Mapping[str, str] = {
    "div": "({0} / {1})",
    "floor_div": "floor_div_floating({0}, {1})",
    "remainder": "remainder_floating({0}, {1})",
    "fmod": "libdevice.fmod({0}, {1})",
    "minimum": "minimum({0}, {1})",
    "maximum": "maximum({0}, {1})",
    "reciprocal": "(1.0 / {0})",
    "rsqrt": "libdevice.rsqrt({0})",
    "copysign": "libdevice.copysign({0}, {1})",
    "sigmoid": "(1.0 / (1.0 + libdevice.exp(-{0})))",
    "rough_sigmoid": "(1.0 / (1.0 + tl.exp(-{0})))",
    "rough_normal": "rough_normal({0})",
    "pow": "libdevice.pow({0}, {1})",
    "atan2": "libdevice.atan2({0}, {1})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "round": "libdevice.nearbyint({0})",
    "round_float16": "{0}.to(tl.float16).to(tl.float32)",
    "round_bfloat16": "{0}.to(tl.bfloat16).to(tl.float32)",
    "isnan": "({0} != {0})",
    **{
        name: f"libdevice.{name}({{0}})"
        for name in (
            "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc "
            "trunc"
        ).split()
    },
}
_INTEGER: Mapping[str, str] = {
    "floor_div": "floor_div_integer({0}, {1})",
    "trunc_div": "trunc_div_integer({0}, {1})",
    "remainder": "remainder_integer({0}, {1})",
    "fmod": "fmod_integer({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "maximum": "tl.maximum({0}, {1})",
    "and": "({0} & {1})",
    "or": "({0} | {1})",
    "xor": "({0} ^ {1})",
    "not": "(~{0})",
    "shift_left": "shift_left({0}, {1}, {bits})",
    "shift_right": "shift_right({0}, {1}, {bits})",
}
_BOOL: Mapping[str, str] = {
    "minimum": "({0} & {1})",
    "maximum": "({0} | {1})",
    "and": "({0} & {1})",
    "or": "({0} | {1})",
    "xor": "({0} ^ {1})",
    "not": "({0} == 0)",
    "lt": "(({0} == 0) & {1})",
    "le": "(({0} == 0) | {1})",
    "gt": "({0} & ({1} == 0))",
    "ge": "({0} | ({1} == 0))",
}
_SMALL = frozenset({torch.int8, torch.uint8, torch.int16})


def has_operator(node: Apply) -> bool:
    """Whether there is text for an operator on its types."""
    return node.op in ("to_dtype", "uniform") or _template(node.op, node.arguments[-1].dtype) is not None


def operation(node: Apply, texts: Sequence[str]) -> str:
    """Text of an operator on arguments."""
    operand = node.arguments[-1].dtype
    if node.op == "to_dtype":
        return conversion(texts[0], operand, node.dtype)
    if node.op == "sqrt":
        return f"tl.sqrt_rn({texts[0]})" if operand == torch.float32 else f"tl.sqrt({texts[0]})"
    template = _template(node.op, operand)
    assert template is not None, f"no text for {node.op} on {operand}"
    text = template.format(*texts, bits=8 * operand.itemsize)
    return f"{text}.to({NAMES[node.dtype]})" if node.dtype in _SMALL and node.op != "where" else text


def _template(op: str, operand: torch.dtype) -> str | None:
    if operand == torch.bool:
        return _BOOL.get(op) or _ANY.get(op)
    if operand.is_floating_point:
        return "sqrt" if op == "sqrt" else _FLOATING.get(op) or _ANY.get(op)
    return _INTEGER.get(op) or _ANY.get(op)


def conversion(text: str, source: torch.dtype, target: torch.dtype) -> str:
    """Text of a value in another type, as torch converts it."""
    if source == target:
        return text
    if target == torch.bool:
        return f"({text} != 0)"
    if source.is_floating_point and target in _SMALL:
        # A float outside of a small type wraps around in torch, and is undefined in one step.
        return f"{text}.to(tl.int32).to({NAMES[target]})"
    return f"{text}.to({NAMES[target]})"
