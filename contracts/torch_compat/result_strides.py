"""Strides of results that torch states wrongly: how eager's kernels lay out what fake tensors lay out otherwise.

Place: a part of the door; see ``contracts.torch_compat``.
Input: an operator, the fake values it is called with and the results that torch states. Output: their strides in eager.
torch's fake tensors (seen in 2.11 and 2.13) run decompositions in Python for these operators: of several steps the last
one has the word about strides, or none of the operands. Eager's kernels ask one iterator over all operands, or fill
memory of their own. What an iterator answers is taken from operators of two and one operands that are stated rightly.
Invariants: where torch states the truth, nothing changes; ``tests/contracts/test_result_strides.py`` holds these rules,
and all other operators that work element by element, against the kernels themselves.
Non-goals: operators that are decomposed wherever graphs are captured (``float_power``, ``rrelu``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

aten = torch.ops.aten

Given = Mapping[str, Any]
"""Arguments by name."""
_Rule = Callable[[Given, torch.Tensor], torch.Tensor]
"""A tensor that lies as eager's result does, given what is stated of it."""

_CONTIGUOUS = torch.contiguous_format


def _iterated(first: str, second: str) -> _Rule:
    """The kernel asks an iterator over two operands, in this order."""
    return lambda given, stated: _of_both(given[first], given[second], stated)


def _of_both(first: torch.Tensor, second: torch.Tensor, stated: torch.Tensor) -> torch.Tensor:
    """Integers become floating ones for a floating result, and are packed on the way."""
    floating = stated.is_floating_point() or stated.is_complex()
    return aten.div.Tensor(first, second) if floating else aten.add.Tensor(first, second)


def _like(name: str) -> _Rule:
    """The kernel makes memory like an argument's."""
    return lambda given, stated: aten.empty_like.default(given[name]) if _fits(given[name], stated) else stated


def _row_major_like(name: str) -> _Rule:
    """The kernel makes row-major memory of an argument's shape."""
    return lambda given, stated: _row_major(given[name]) if _fits(given[name], stated) else stated


def _row_major(tensor: torch.Tensor) -> torch.Tensor:
    return aten.empty_like.default(tensor, memory_format=_CONTIGUOUS)


def _fits(tensor: torch.Tensor, stated: torch.Tensor) -> bool:
    return tensor.shape == stated.shape


_BY_OPERANDS = _iterated("self", "other")
_BY_GRADIENT = _iterated("grad_output", "self")

_RULES: Mapping[Any, _Rule] = {
    aten.copysign.Tensor: _BY_OPERANDS,
    aten.floor_divide.default: _BY_OPERANDS,
    aten.heaviside.default: _iterated("self", "values"),
    aten.logaddexp.default: _BY_OPERANDS,
    aten.logaddexp2.default: _BY_OPERANDS,
    aten.logical_and.default: _BY_OPERANDS,
    aten.logical_or.default: _BY_OPERANDS,
    aten.logical_xor.default: _BY_OPERANDS,
    aten.special_xlog1py.default: _BY_OPERANDS,
    aten.xlogy.Tensor: _BY_OPERANDS,
    # A power that is row-major, see below, times what is scaled.
    aten.ldexp.Tensor: lambda given, stated: _of_both(given["self"], _row_major(given["other"]), stated),
    aten.elu_backward.default: _iterated("grad_output", "self_or_result"),
    aten.hardsigmoid_backward.default: _BY_GRADIENT,
    aten.hardswish_backward.default: _BY_GRADIENT,
    aten.hardtanh_backward.default: _BY_GRADIENT,
    aten.leaky_relu_backward.default: _iterated("self", "grad_output"),
    aten.logit_backward.default: _BY_GRADIENT,
    aten.native_dropout_backward.default: _iterated("grad_output", "mask"),
    aten.softplus_backward.default: _BY_GRADIENT,
    aten.threshold_backward.default: _iterated("self", "grad_output"),
    aten.binary_cross_entropy_backward.default: _like("self"),
    aten.log_sigmoid_backward.default: _like("grad_output"),
    aten.huber_loss_backward.default: _row_major_like("self"),
    aten.mse_loss_backward.default: _row_major_like("self"),
    aten.smooth_l1_loss_backward.default: _row_major_like("self"),
    aten.log_sigmoid_forward.default: _row_major_like("self"),
    aten.pow.Scalar: _row_major_like("exponent"),
}

MISLAID = frozenset(_RULES)
"""Operators with results that torch may lay out wrongly."""


def eager_strides(operator: Any, given: Given, stated: Sequence[Any]) -> dict[int, tuple[Any, ...]]:
    """Strides of an operator's results, by number, as eager's kernel gives them; empty where there is no rule.

    Called in the mode of the fake values, without guards.
    """
    rule = _RULES.get(operator)
    if rule is None:
        return {}
    laid = rule(given, stated[0])
    return {place: tuple(laid.stride()) for place, item in enumerate(stated) if item.shape == laid.shape}
