"""Rules of batch norm in its functional forms.

Place: rule module, see ``lower.rules``; ``batch_norm_backward`` has the gradient.
Invariants: training folds every channel for both moments, in the precision eager has; the running statistics are
results, never updated in place. Inference uses the running statistics and returns empty saved ones, as eager does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

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


@dataclass(frozen=True)
class _Norm:
    """What is normalised, and by what, under the ops' names of arguments."""

    input: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    running_mean: Tensor | None = None
    running_var: Tensor | None = None

    @property
    def running(self) -> tuple[Tensor, Tensor]:
        """The running statistics.

        Raises:
            RefusedError: there are none.
        """
        if self.running_mean is None or self.running_var is None:
            raise RefusedError("argument", "inference without running statistics")
        return self.running_mean, self.running_var


@rule("aten._native_batch_norm_legit_no_training.default")
def batch_norm_inference(lowering: Lowering, momentum: float, **given: Any) -> tuple[Tensor, ...]:
    """Normalised by the running statistics."""
    return _by_running(lowering, _Norm(**given))


@rule("aten._native_batch_norm_legit.no_stats")
def batch_norm_without_running(lowering: Lowering, training: bool, momentum: float, **given: Any) -> tuple[Tensor, ...]:
    """Normalised by the batch's own statistics; nothing runs along."""
    if not training:
        raise RefusedError("argument", "inference without running statistics")
    return _by_batch(lowering, _Norm(**given))[0]


@rule("aten._native_batch_norm_legit_functional.default")
def batch_norm_functional(lowering: Lowering, training: bool, momentum: float, **given: Any) -> tuple[Tensor, ...]:
    """Either kind, with the new running statistics as results."""
    norm = _Norm(**given)
    if not training:
        mean, variance = norm.running
        check_announced(lowering, {3: mean.dtype, 4: variance.dtype})
        result = _by_running(lowering, norm)
        return (*result, as_announced(lowering, mean, 3), as_announced(lowering, variance, 4))
    result, found = _by_batch(lowering, norm)
    return (*result, *_updated(lowering, norm, found, momentum, 3))


@rule("aten._batch_norm_with_update_functional.default")
def batch_norm_with_update(lowering: Lowering, momentum: float, **given: Any) -> tuple[Tensor, ...]:
    """The training kind; its reserve is empty on devices without a library that wants one."""
    norm = _Norm(**given)
    result, found = _by_batch(lowering, norm, first_update=4)
    reserve = lowering.map((0,), torch.uint8, lambda index: Constant(torch.uint8, 0))
    return (*result, reserve, *_updated(lowering, norm, found, momentum, 4))


@rule("aten.native_batch_norm.default")
def batch_norm(lowering: Lowering, training: bool, momentum: float, **given: Any) -> tuple[Tensor, ...]:
    """Either kind, as far as no running statistics change."""
    norm = _Norm(**given)
    if not training:
        return _by_running(lowering, norm)
    if norm.running_mean is not None:
        raise RefusedError("effect", "updates its running statistics in place")
    return _by_batch(lowering, replace(norm, running_var=None))[0]


def _by_running(lowering: Lowering, norm: _Norm) -> tuple[Tensor, Tensor, Tensor]:
    running_mean, running_var = norm.running
    check_floating(norm.input, norm.weight, norm.bias, running_mean, running_var)
    compute = norm.input.compute
    deviation = running_deviation(lowering, running_var, norm.eps, compute)
    mean = lowering.in_type(running_mean, compute)
    result = _normalized(lowering, norm, mean, deviation)
    if announced(lowering, 1).shape != (0,):
        # On GPUs eager saves statistics that were not computed, one per channel.
        return result, as_announced(lowering, mean, 1), as_announced(lowering, deviation, 2)
    nothing = lowering.map((0,), compute, lambda index: Constant(compute, 0.0))
    return result, as_announced(lowering, nothing, 1), as_announced(lowering, nothing, 2)


def _by_batch(lowering: Lowering, norm: _Norm, first_update: int = 3) -> tuple[tuple[Tensor, Tensor, Tensor], Moments]:
    """Result and saved statistics, and the moments in their wide type."""
    input, running = norm.input, (norm.running_mean, norm.running_var)
    check_floating(input, norm.weight, norm.bias, *running)
    saved = statistic_dtype(input, (norm.weight, norm.bias, *running))
    updates = {first_update + place: item.dtype for place, item in enumerate(running) if item is not None}
    check_announced(lowering, {1: saved, 2: saved} | updates)
    axes = channel_axes(input)
    require_values(lowering, input, axes, "input")
    found = moments_of_rows(lowering, input, axes, wide_accumulator(lowering, input.dtype))
    found = found._replace(mean=mean_by_adding(lowering, found, input, axes))
    mean = lowering.in_type(found.mean, input.compute)
    deviation = reciprocal_deviation(lowering, found, axes.count, norm.eps, input.compute)
    result = _normalized(lowering, norm, mean, deviation)
    return (result, as_announced(lowering, mean, 1), as_announced(lowering, deviation, 2)), found


def _normalized(lowering: Lowering, norm: _Norm, mean: Tensor, deviation: Tensor) -> Tensor:
    """``(x - mean) * scale + bias``, where the scale of a channel is a small map of its own."""
    input, compute = norm.input, norm.input.compute
    axes = channel_axes(input)

    def scale_of(channel: Index) -> Expr:
        return scaled(lowering, norm.weight, compute, deviation.at(channel), channel)

    scale = deviation if norm.weight is None else lowering.map(deviation.sizes, compute, scale_of)

    def value(index: Index) -> Expr:
        channel = axes.keep(index)
        centered = input.at(index) - mean.at(channel)
        return shifted(lowering, norm.bias, compute, centered * scale.at(channel), channel)

    return lowering.map(input.sizes, lowering.output_dtype, value)


def _updated(lowering: Lowering, norm: _Norm, found: Moments, momentum: float, first: int) -> tuple[Tensor, ...]:
    """New running mean and (unbiased) variance: ``momentum * new + (1 - momentum) * old``."""
    wide, running = found.mean.dtype, norm.running
    fresh, stays = Constant(wide, float(momentum)), Constant(wide, 1.0 - float(momentum))
    degrees = count_of(channel_axes(norm.input).count, wide) - Constant(wide, 1.0)

    def blended(value: Expr, old: Tensor, index: Index) -> Expr:
        kept = lowering.cast(old.at(index), wide) * stays
        return value * fresh + kept

    def mean(index: Index) -> Expr:
        return blended(found.mean.at(index), running[0], index)

    def variance(index: Index) -> Expr:
        return blended(found.distances.at(index) / degrees, running[1], index)

    sizes = found.mean.sizes
    updates = (lowering.map(sizes, running[0].dtype, mean), lowering.map(sizes, running[1].dtype, variance))
    return tuple(as_announced(lowering, update, first + place) for place, update in enumerate(updates))


def running_deviation(lowering: Lowering, variance: Tensor, eps: float, compute: torch.dtype) -> Tensor:
    """``1 / sqrt(variance + eps)`` per channel."""
    epsilon = Constant(compute, float(eps))

    def value(index: Index) -> Expr:
        return apply("rsqrt", lowering.cast(variance.at(index), compute) + epsilon)

    return lowering.map(variance.sizes, compute, value)


def channel_axes(tensor: Tensor) -> Axes:
    """Everything but the channels, dimension 1, reduced.

    Raises:
        RefusedError: there are no channels.
    """
    if tensor.rank < 2:
        raise RefusedError("rank", f"{tensor.rank} dimensions; samples and channels are needed")
    return Axes(tensor.sizes, tuple(place for place in range(tensor.rank) if place != 1))
