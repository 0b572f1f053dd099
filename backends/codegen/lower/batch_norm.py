"""Rules of batch norm in its functional forms, and of its gradient.

Place: rule module, see ``lower.rules``.
Invariants: training folds every channel for both moments, in the precision eager has; the running statistics are
results, never updated in place. Inference uses the running statistics and returns empty saved ones, as eager does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, apply
from mixbackend.backends.codegen.lower.axes import Axes, converted, count_of, fold, require_values
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.saved_statistics import (
    announced,
    as_announced,
    check_announced,
    check_floating,
    is_wanted,
    reciprocal_deviation,
    scaled,
    shifted,
    statistic_dtype,
)
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.backends.codegen.lower.variance import Moments, moments_of_rows, wide_accumulator

Saved = tuple[Tensor, Tensor]


@rule("aten._native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    lowering: Lowering,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """Normalised by the running statistics."""
    return _by_running(lowering, input, weight, bias, running_mean, running_var, eps)


@rule("aten._native_batch_norm_legit.no_stats")
def batch_norm_without_running(
    lowering: Lowering,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """Normalised by the batch's own statistics; nothing runs along."""
    if not training:
        raise RefusedError("argument", "inference without running statistics")
    return _by_batch(lowering, input, weight, bias, None, None, eps)[0]


@rule("aten._native_batch_norm_legit_functional.default")
def batch_norm_functional(
    lowering: Lowering,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """Either kind, with the new running statistics as results."""
    if not training:
        check_announced(lowering, {3: running_mean.dtype, 4: running_var.dtype})
        result = _by_running(lowering, input, weight, bias, running_mean, running_var, eps)
        return (*result, as_announced(lowering, running_mean, 3), as_announced(lowering, running_var, 4))
    result, found = _by_batch(lowering, input, weight, bias, running_mean, running_var, eps)
    return (*result, *_updated(lowering, input, found, (running_mean, running_var), momentum, 3))


@rule("aten._batch_norm_with_update_functional.default")
def batch_norm_with_update(
    lowering: Lowering,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """The training kind; its reserve is empty on devices without a library that wants one."""
    result, found = _by_batch(lowering, input, weight, bias, running_mean, running_var, eps, first_update=4)
    reserve = lowering.map((0,), torch.uint8, lambda index: Constant(torch.uint8, 0))
    return (*result, reserve, *_updated(lowering, input, found, (running_mean, running_var), momentum, 4))


@rule("aten.native_batch_norm.default")
def batch_norm(
    lowering: Lowering,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """Either kind, as far as no running statistics change."""
    if training and running_mean is not None:
        raise RefusedError("effect", "updates its running statistics in place")
    if training:
        return _by_batch(lowering, input, weight, bias, None, None, eps)[0]
    if running_mean is None or running_var is None:
        raise RefusedError("argument", "inference without running statistics")
    return _by_running(lowering, input, weight, bias, running_mean, running_var, eps)


@rule("aten.native_batch_norm_backward.default")
def batch_norm_backward(
    lowering: Lowering,
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of input, weight and bias: two folds per channel, then one map.

    ``dx = scale * (grad - mean(grad) - normalized * mean(grad * normalized))``; by running statistics ``scale * grad``.
    """
    check_floating(grad_out, input, weight)
    axes, compute = _channel_axes(input), input.compute
    mean, deviation = _statistics_of_backward(
        lowering, compute, train, (save_mean, save_invstd), (running_mean, running_var), eps
    )
    grad = converted(lowering, grad_out, compute)

    def normalized(index: Index) -> Expr:
        channel = axes.keep(index)
        return apply("mul", apply("sub", input.at(index), mean.at(channel)), deviation.at(channel))

    (total,) = fold(lowering, "sum", axes, grad, [compute])
    projected = lambda index: apply("mul", grad(index), normalized(index))  # noqa: E731 - one expression
    (projection,) = fold(lowering, "sum", axes, projected, [compute])
    count = count_of(axes.count, compute)

    def value(index: Index) -> Expr:
        channel, item = axes.keep(index), grad(index)
        if train:
            # Divided per channel, not per point.
            along = apply("mul", normalized(index), apply("div", projection.at(channel), count))
            item = apply("sub", apply("sub", item, apply("div", total.at(channel), count)), along)
        return apply("mul", item, scaled(lowering, weight, compute, deviation.at(channel), channel))

    gradient = lowering.map(input.sizes, lowering.output_dtype, value) if is_wanted(lowering, 0) else None
    return (
        gradient,
        as_announced(lowering, projection, 1) if is_wanted(lowering, 1) else None,
        as_announced(lowering, total, 2) if is_wanted(lowering, 2) else None,
    )


def _statistics_of_backward(
    lowering: Lowering,
    compute: torch.dtype,
    train: bool,
    saved: tuple[Tensor | None, Tensor | None],
    running: tuple[Tensor | None, Tensor | None],
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal deviation that the forward used, in the compute type."""
    mean, spread = saved if train else running
    if mean is None or spread is None:
        raise RefusedError("argument", "no statistics to go back by")
    if train:
        return _in_type(lowering, mean, compute), _in_type(lowering, spread, compute)
    return _in_type(lowering, mean, compute), _running_deviation(lowering, spread, eps, compute)


def _by_running(
    lowering: Lowering,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    check_floating(input, weight, bias, running_mean, running_var)
    compute = input.compute
    deviation = _running_deviation(lowering, running_var, eps, compute)
    mean = _in_type(lowering, running_mean, compute)
    result = _normalized(lowering, input, weight, bias, mean, deviation)
    if announced(lowering, 1).shape != (0,):
        # On GPUs eager saves statistics that nobody computed, one per channel.
        return result, as_announced(lowering, mean, 1), as_announced(lowering, deviation, 2)
    nothing = lowering.map((0,), compute, lambda index: Constant(compute, 0.0))
    return result, as_announced(lowering, nothing, 1), as_announced(lowering, nothing, 2)


def _by_batch(
    lowering: Lowering,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    eps: float,
    first_update: int = 3,
) -> tuple[tuple[Tensor, Tensor, Tensor], Moments]:
    """Result and saved statistics, and the moments in their wide type."""
    check_floating(input, weight, bias, running_mean, running_var)
    saved = statistic_dtype(input, (weight, bias, running_mean, running_var))
    dtypes = {1: saved, 2: saved}
    if running_mean is not None and running_var is not None:
        dtypes |= {first_update: running_mean.dtype, first_update + 1: running_var.dtype}
    check_announced(lowering, dtypes)
    axes = _channel_axes(input)
    require_values(lowering, input, axes, "input")
    found = moments_of_rows(lowering, input, axes, wide_accumulator(lowering, input.dtype))
    mean = _in_type(lowering, found.mean, input.compute)
    deviation = reciprocal_deviation(lowering, found, axes.count, eps, input.compute)
    result = _normalized(lowering, input, weight, bias, mean, deviation)
    return (result, as_announced(lowering, mean, 1), as_announced(lowering, deviation, 2)), found


def _normalized(
    lowering: Lowering,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    deviation: Tensor,
) -> Tensor:
    """``(x - mean) * scale + bias``, where the scale of a channel is a small map of its own."""
    axes, compute = _channel_axes(input), input.compute

    def scale_of(channel: Index) -> Expr:
        return scaled(lowering, weight, compute, deviation.at(channel), channel)

    scale = deviation if weight is None else lowering.map(deviation.sizes, compute, scale_of)

    def value(index: Index) -> Expr:
        channel = axes.keep(index)
        centered = apply("sub", input.at(index), mean.at(channel))
        return shifted(lowering, bias, compute, apply("mul", centered, scale.at(channel)), channel)

    return lowering.map(input.sizes, lowering.output_dtype, value)


def _updated(
    lowering: Lowering, input: Tensor, found: Moments, running: Saved, momentum: float, first: int
) -> tuple[Tensor, ...]:
    """New running mean and (unbiased) variance: ``momentum * new + (1 - momentum) * old``."""
    wide = found.mean.dtype
    fresh, stays = Constant(wide, float(momentum)), Constant(wide, 1.0 - float(momentum))
    degrees = apply("sub", count_of(_channel_axes(input).count, wide), Constant(wide, 1.0))

    def blended(value: Expr, old: Tensor, index: Index) -> Expr:
        kept = apply("mul", lowering.cast(old.at(index), wide), stays)
        return apply("add", apply("mul", value, fresh), kept)

    def mean(index: Index) -> Expr:
        return blended(found.mean.at(index), running[0], index)

    def variance(index: Index) -> Expr:
        return blended(apply("div", found.distances.at(index), degrees), running[1], index)

    sizes = found.mean.sizes
    updates = (lowering.map(sizes, running[0].dtype, mean), lowering.map(sizes, running[1].dtype, variance))
    return tuple(as_announced(lowering, update, first + place) for place, update in enumerate(updates))


def _running_deviation(lowering: Lowering, variance: Tensor, eps: float, compute: torch.dtype) -> Tensor:
    """``1 / sqrt(variance + eps)`` per channel."""
    epsilon = Constant(compute, float(eps))

    def value(index: Index) -> Expr:
        return apply("rsqrt", apply("add", lowering.cast(variance.at(index), compute), epsilon))

    return lowering.map(variance.sizes, compute, value)


def _in_type(lowering: Lowering, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype == dtype else lowering.map(tensor.sizes, dtype, tensor.at)


def _channel_axes(tensor: Tensor) -> Axes:
    """Everything but the channels, dimension 1, reduced.

    Raises:
        RefusedError: there are no channels.
    """
    if tensor.rank < 2:
        raise RefusedError("rank", f"{tensor.rank} dimensions; samples and channels are needed")
    return Axes(tensor.sizes, tuple(place for place in range(tensor.rank) if place != 1))
