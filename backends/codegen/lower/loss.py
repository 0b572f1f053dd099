"""Rules of losses between two tensors, point by point and then reduced, and of their gradients.

Place: rule module, see ``lower.rules``; losses over classes are in ``likelihood``.
Invariants: the loss of a point is an expression in the compute type; it is stored only where nothing is reduced. A mean
divides the sum once; over nothing it is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, apply, compute_dtype
from mixbackend.backends.codegen.lower.axes import axes_of, count_of, fold
from mixbackend.backends.codegen.lower.broadcast import broadcast_sizes, read
from mixbackend.backends.codegen.lower.formula import clamped, exp, where
from mixbackend.backends.codegen.lower.lowering import Lowering, ValueFunction
from mixbackend.backends.codegen.lower.promotion import result_type
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor

NONE, MEAN, SUM = 0, 1, 2
"""Values of torch's ``reduction`` argument."""


# -- distances ----------------------------------------------------------------------------------------------------


def _distance_rules(name: str, value: Callable[..., Expr], slope: Callable[..., Expr]) -> None:
    """Rules of a loss and its gradient.

    Args:
        value: of a point: of input, target and the op's own numbers.
        slope: its derivative by the input.
    """

    def forward(lowering: Lowering, self: Tensor, target: Tensor, reduction: int, **own: float) -> Tensor:
        return _reduced(lowering, reduction, partial(value, **own), self, target)

    def backward(
        lowering: Lowering, grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, **own: float
    ) -> Tensor:
        return _gradient(lowering, reduction, partial(slope, **own), grad_output, self, target)

    rule(f"aten.{name}.default")(forward)
    rule(f"aten.{name}_backward.default")(backward)


def _square(x: Expr, y: Expr) -> Expr:
    return (x - y) * (x - y)


def _square_slope(x: Expr, y: Expr) -> Expr:
    return (x - y) + (x - y)


def _smooth_distance(x: Expr, y: Expr, beta: float) -> Expr:
    """A parabola of width ``beta``, then the distance."""
    distance = apply("abs", x - y)
    if beta == 0:
        return distance
    width, half = _constants(distance, beta, 0.5)
    inside = half * (distance * distance) / width
    return where(distance < width, inside, distance - half * width)


def _smooth_slope(x: Expr, y: Expr, beta: float) -> Expr:
    """The distance over ``beta``, at most 1 either way."""
    difference = x - y
    width, one = _constants(difference, beta, 1.0)
    above = where(difference >= width, one, difference / width)
    # Compared in this order for the sake of beta = 0, where an exact hit counts as below.
    return where(difference <= -width, -one, above)


def _huber(x: Expr, y: Expr, delta: float) -> Expr:
    """A parabola up to the distance ``delta``, then its tangent."""
    distance = apply("abs", x - y)
    width, half = _constants(distance, delta, 0.5)
    return where(distance <= width, half * (distance * distance), width * (distance - half * width))


def _huber_slope(x: Expr, y: Expr, delta: float) -> Expr:
    return clamped(x - y, -delta, delta)


def _soft_margin(x: Expr, y: Expr) -> Expr:
    return apply("log1p", exp(-(x * y)))


def _soft_margin_slope(x: Expr, y: Expr) -> Expr:
    return -(y * apply("sigmoid", -(x * y)))


_distance_rules("mse_loss", _square, _square_slope)
_distance_rules("smooth_l1_loss", _smooth_distance, _smooth_slope)
_distance_rules("huber_loss", _huber, _huber_slope)
_distance_rules("soft_margin_loss", _soft_margin, _soft_margin_slope)


# -- cross entropy of probabilities -------------------------------------------------------------------------------


@rule("aten.binary_cross_entropy.default")
def binary_cross_entropy(
    lowering: Lowering, self: Tensor, target: Tensor, weight: Tensor | None, reduction: int
) -> Tensor:
    """``-y log(x) - (1 - y) log(1 - x)``, the logarithms at least -100."""

    def value(probability: Expr, truth: Expr, *factor: Expr) -> Expr:
        one, lowest = _constants(probability, 1.0, -100.0)
        positive = apply("maximum", apply("log", probability), lowest)
        negative = apply("maximum", apply("log1p", -probability), lowest)
        loss = (truth - one) * negative - truth * positive
        return _weighted(loss, factor)

    return _reduced(lowering, reduction, value, self, target, *_given(weight))


@rule("aten.binary_cross_entropy_backward.default")
def binary_cross_entropy_backward(
    lowering: Lowering, grad_output: Tensor, self: Tensor, target: Tensor, weight: Tensor | None, reduction: int
) -> Tensor:
    """``(x - y) / max(x (1 - x), 1e-12)``."""

    def slope(probability: Expr, truth: Expr, *factor: Expr) -> Expr:
        one, least = _constants(probability, 1.0, 1e-12)
        spread = (one - probability) * probability
        return _weighted((probability - truth) / apply("maximum", spread, least), factor)

    return _gradient(lowering, reduction, slope, grad_output, self, target, *_given(weight))


@rule("aten.binary_cross_entropy_with_logits.default")
def binary_cross_entropy_with_logits(
    lowering: Lowering,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    pos_weight: Tensor | None,
    reduction: int,
) -> Tensor:
    """``(1 - y) x - w log(sigmoid(x))`` with ``w = 1 + (pos_weight - 1) y``."""

    def value(logit: Expr, truth: Expr, *factors: Expr) -> Expr:
        one, zero = _constants(logit, 1.0, 0.0)
        # log(sigmoid(x)) = min(x, 0) - log(1 + exp(-|x|)): nothing overflows.
        tail = apply("log1p", apply("exp", -apply("abs", logit)))
        logarithm = apply("minimum", logit, zero) - tail
        if pos_weight is not None:
            extra = (factors[-1] - one) * truth
            logarithm = (extra + one) * logarithm
        loss = (one - truth) * logit - logarithm
        return _weighted(loss, factors[:1] if weight is not None else ())

    return _reduced(lowering, reduction, value, self, target, *_given(weight, pos_weight))


# -- shared -------------------------------------------------------------------------------------------------------


def reduce_loss(lowering: Lowering, reduction: int, sizes: Index, value: ValueFunction) -> Tensor:
    """The loss of every point, their sum, or their mean."""
    dtype = lowering.output_dtype
    compute = compute_dtype(dtype)
    if reduction == NONE:
        return lowering.map(sizes, dtype, value)
    if reduction not in (MEAN, SUM):
        raise RefusedError("argument", f"reduction {reduction}")
    axes = axes_of(Tensor(sizes, compute, value), None)
    (total,) = fold(lowering, "sum", axes, value, [compute])
    count = count_of(axes.count, compute)

    def result(index: Index) -> Expr:
        return total.at(index) / count if reduction == MEAN else total.at(index)

    return lowering.map((), dtype, result)


def _reduced(lowering: Lowering, reduction: int, function: Callable[..., Expr], *operands: Tensor) -> Tensor:
    """The loss of operands, broadcast, in the compute type of what they have in common."""
    compute, result = _computed_in(operands), compute_dtype(lowering.output_dtype)
    sizes = broadcast_sizes(*(operand.sizes for operand in operands))

    def value(index: Index) -> Expr:
        return lowering.cast(function(*(read(operand, index, compute) for operand in operands)), result)

    return reduce_loss(lowering, reduction, sizes, value)


def _gradient(
    lowering: Lowering, reduction: int, slope: Callable[..., Expr], grad_output: Tensor, *operands: Tensor
) -> Tensor:
    """``grad * slope``, over the number of points if their mean was taken."""
    compute = _computed_in((grad_output, *operands))
    sizes = broadcast_sizes(*(operand.sizes for operand in operands))
    count = count_of(sympy.Mul(*sizes), compute)

    def value(index: Index) -> Expr:
        grad = read(grad_output, index, compute)
        inner = slope(*(read(operand, index, compute) for operand in operands))
        if reduction == MEAN:
            inner = inner / count
        return inner * grad

    return lowering.map(sizes, lowering.output_dtype, value)


def _computed_in(operands: tuple[Tensor, ...]) -> torch.dtype:
    """Compute type of what operands have in common; a result may be narrower.

    Raises:
        RefusedError: the operands are not floating.
    """
    if not all(operand.dtype.is_floating_point for operand in operands):
        raise RefusedError("dtype", f"a loss of {', '.join(str(operand.dtype) for operand in operands)}")
    return compute_dtype(result_type(*operands))


def _given(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    return tuple(tensor for tensor in tensors if tensor is not None)


def _weighted(value: Expr, factor: tuple[Expr, ...]) -> Expr:
    return value * factor[0] if factor else value


def _constants(like: Expr, *values: Any) -> tuple[Expr, ...]:
    return tuple(Constant(like.dtype, float(value)) for value in values)
