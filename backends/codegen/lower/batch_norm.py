"""Rules of batch norm in its functional forms.

Place: rule module, see ``lower.rules``; ``batch_norm_backward`` has the gradient.
Invariants: training folds every channel for both moments, in the precision eager has; the running statistics are
results, never updated in place. Inference uses the running statistics and returns empty saved ones, as eager does.
"""

from __future__ import annotations

import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, apply
from mixbackend.backends.codegen.lower.axes import Axes, count_of, require_values
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.saved_statistics import (
    announced,
    as_announced,
    check_announced,
    check_floating,
    reciprocal_deviation,
    scaled,
    shifted,
    statistic_dtype,
)
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.backends.codegen.lower.variance import Moments, mean_by_adding, moments_of_rows, wide_accumulator

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
    deviation = running_deviation(lowering, running_var, eps, compute)
    mean = in_type(lowering, running_mean, compute)
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
    axes = channel_axes(input)
    require_values(lowering, input, axes, "input")
    found = moments_of_rows(lowering, input, axes, wide_accumulator(lowering, input.dtype))
    found = found._replace(mean=mean_by_adding(lowering, found, input, axes))
    mean = in_type(lowering, found.mean, input.compute)
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
    axes, compute = channel_axes(input), input.compute

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
    degrees = apply("sub", count_of(channel_axes(input).count, wide), Constant(wide, 1.0))

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


def running_deviation(lowering: Lowering, variance: Tensor, eps: float, compute: torch.dtype) -> Tensor:
    """``1 / sqrt(variance + eps)`` per channel."""
    epsilon = Constant(compute, float(eps))

    def value(index: Index) -> Expr:
        return apply("rsqrt", apply("add", lowering.cast(variance.at(index), compute), epsilon))

    return lowering.map(variance.sizes, compute, value)


def in_type(lowering: Lowering, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype == dtype else lowering.map(tensor.sizes, dtype, tensor.at)


def channel_axes(tensor: Tensor) -> Axes:
    """Everything but the channels, dimension 1, reduced.

    Raises:
        RefusedError: there are no channels.
    """
    if tensor.rank < 2:
        raise RefusedError("rank", f"{tensor.rank} dimensions; samples and channels are needed")
    return Axes(tensor.sizes, tuple(place for place in range(tensor.rank) if place != 1))
