"""Rules of losses between two tensors, point by point and then reduced, and of their gradients.

Place: rule module, see ``lower.rules``; losses over classes are in ``likelihood``.
Invariants: the loss of a point is an expression in the compute type; it is stored only where nothing is reduced. A mean
divides the sum once; over nothing it is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, apply, compute_dtype
from mixbackend.backends.codegen.lower.axes import axes_of, count_of, fold
from mixbackend.backends.codegen.lower.broadcast import broadcast_sizes, read
from mixbackend.backends.codegen.lower.lowering import Lowering, ValueFunction
from mixbackend.backends.codegen.lower.promotion import result_type
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor

NONE, MEAN, SUM = 0, 1, 2
"""Values of torch's ``reduction`` argument."""


# -- distances ----------------------------------------------------------------------------------------------------


@rule("aten.mse_loss.default")
def mse_loss(lowering: Lowering, self: Tensor, target: Tensor, reduction: int) -> Tensor:
    """``(x - y)^2``."""

    def value(first: Expr, second: Expr) -> Expr:
        difference = apply("sub", first, second)
        return apply("mul", difference, difference)

    return _reduced(lowering, reduction, value, self, target)


@rule("aten.mse_loss_backward.default")
def mse_loss_backward(lowering: Lowering, grad_output: Tensor, self: Tensor, target: Tensor, reduction: int) -> Tensor:
    """``2 (x - y)``."""

    def slope(first: Expr, second: Expr) -> Expr:
        difference = apply("sub", first, second)
        return apply("add", difference, difference)

    return _gradient(lowering, reduction, slope, grad_output, self, target)


@rule("aten.smooth_l1_loss.default")
def smooth_l1_loss(lowering: Lowering, self: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """A parabola of width ``beta``, then the distance."""

    def value(first: Expr, second: Expr) -> Expr:
        distance = apply("abs", apply("sub", first, second))
        if beta == 0:
            return distance
        width, half = _constants(distance, beta, 0.5)
        inside = apply("div", apply("mul", half, apply("mul", distance, distance)), width)
        outside = apply("sub", distance, apply("mul", half, width))
        return apply("where", apply("lt", distance, width), inside, outside)

    return _reduced(lowering, reduction, value, self, target)


@rule("aten.smooth_l1_loss_backward.default")
def smooth_l1_loss_backward(
    lowering: Lowering, grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, beta: float
) -> Tensor:
    """The distance over ``beta``, at most 1 either way."""

    def slope(first: Expr, second: Expr) -> Expr:
        difference = apply("sub", first, second)
        width, one = _constants(difference, beta, 1.0)
        above = apply("where", apply("ge", difference, width), one, apply("div", difference, width))
        # Compared in this order for the sake of beta = 0, where an exact hit counts as below.
        return apply("where", apply("le", difference, apply("neg", width)), apply("neg", one), above)

    return _gradient(lowering, reduction, slope, grad_output, self, target)


@rule("aten.huber_loss.default")
def huber_loss(lowering: Lowering, self: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    """A parabola up to the distance ``delta``, then its tangent."""

    def value(first: Expr, second: Expr) -> Expr:
        distance = apply("abs", apply("sub", first, second))
        width, half = _constants(distance, delta, 0.5)
        inside = apply("mul", half, apply("mul", distance, distance))
        outside = apply("mul", width, apply("sub", distance, apply("mul", half, width)))
        return apply("where", apply("le", distance, width), inside, outside)

    return _reduced(lowering, reduction, value, self, target)


@rule("aten.huber_loss_backward.default")
def huber_loss_backward(
    lowering: Lowering, grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, delta: float
) -> Tensor:
    """The distance, at most ``delta`` either way."""

    def slope(first: Expr, second: Expr) -> Expr:
        difference = apply("sub", first, second)
        lowest, highest = _constants(difference, -delta, delta)
        return apply("minimum", apply("maximum", difference, lowest), highest)

    return _gradient(lowering, reduction, slope, grad_output, self, target)


@rule("aten.soft_margin_loss.default")
def soft_margin_loss(lowering: Lowering, self: Tensor, target: Tensor, reduction: int) -> Tensor:
    """``log(1 + exp(-x y))``."""

    def value(first: Expr, second: Expr) -> Expr:
        return apply("log1p", apply("exp", apply("neg", apply("mul", first, second))))

    return _reduced(lowering, reduction, value, self, target)


@rule("aten.soft_margin_loss_backward.default")
def soft_margin_loss_backward(
    lowering: Lowering, grad_output: Tensor, self: Tensor, target: Tensor, reduction: int
) -> Tensor:
    """``-y / (1 + exp(x y))``."""

    def slope(first: Expr, second: Expr) -> Expr:
        return apply("neg", apply("mul", second, apply("sigmoid", apply("neg", apply("mul", first, second)))))

    return _gradient(lowering, reduction, slope, grad_output, self, target)


# -- cross entropy of probabilities -------------------------------------------------------------------------------


@rule("aten.binary_cross_entropy.default")
def binary_cross_entropy(
    lowering: Lowering, self: Tensor, target: Tensor, weight: Tensor | None, reduction: int
) -> Tensor:
    """``-y log(x) - (1 - y) log(1 - x)``, the logarithms at least -100."""

    def value(probability: Expr, truth: Expr, *factor: Expr) -> Expr:
        one, lowest = _constants(probability, 1.0, -100.0)
        positive = apply("maximum", apply("log", probability), lowest)
        negative = apply("maximum", apply("log1p", apply("neg", probability)), lowest)
        loss = apply("sub", apply("mul", apply("sub", truth, one), negative), apply("mul", truth, positive))
        return _weighted(loss, factor)

    return _reduced(lowering, reduction, value, self, target, *_given(weight))


@rule("aten.binary_cross_entropy_backward.default")
def binary_cross_entropy_backward(
    lowering: Lowering, grad_output: Tensor, self: Tensor, target: Tensor, weight: Tensor | None, reduction: int
) -> Tensor:
    """``(x - y) / max(x (1 - x), 1e-12)``."""

    def slope(probability: Expr, truth: Expr, *factor: Expr) -> Expr:
        one, least = _constants(probability, 1.0, 1e-12)
        spread = apply("mul", apply("sub", one, probability), probability)
        return _weighted(apply("div", apply("sub", probability, truth), apply("maximum", spread, least)), factor)

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
        tail = apply("log1p", apply("exp", apply("neg", apply("abs", logit))))
        logarithm = apply("sub", apply("minimum", logit, zero), tail)
        if pos_weight is not None:
            extra = apply("mul", apply("sub", factors[-1], one), truth)
            logarithm = apply("mul", apply("add", extra, one), logarithm)
        loss = apply("sub", apply("mul", apply("sub", one, truth), logit), logarithm)
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
        return apply("div", total.at(index), count) if reduction == MEAN else total.at(index)

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
            inner = apply("div", inner, count)
        return apply("mul", inner, grad)

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
    return apply("mul", value, factor[0]) if factor else value


def _constants(like: Expr, *values: Any) -> tuple[Expr, ...]:
    return tuple(Constant(like.dtype, float(value)) for value in values)
