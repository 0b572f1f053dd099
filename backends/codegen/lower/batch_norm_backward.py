"""Rule of the gradient of batch norm.

Place: rule module, see ``lower.rules``.
Invariants: every channel is folded twice, for the gradient and for what it has in common with the input; points then
read one value of a channel for each step, and what divides or multiplies channels is done per channel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mixbackend.backends.codegen.ir.scalar import Expr
from mixbackend.backends.codegen.lower.axes import converted, count_of, fold
from mixbackend.backends.codegen.lower.batch_norm import channel_axes, running_deviation
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.saved_statistics import as_announced, check_floating, is_wanted, scaled
from mixbackend.backends.codegen.lower.tensor import Index, Tensor


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

    ``dx = scale * (grad - mean(grad) - centered * slope)``, where ``slope`` is ``mean(grad * centered)`` over the
    variance; by running statistics ``scale * grad``.
    """
    check_floating(grad_out, input, weight)
    axes, compute = channel_axes(input), input.compute
    mean, deviation = _statistics_of_backward(
        lowering, compute, train, (save_mean, save_invstd), (running_mean, running_var), eps
    )
    grad = converted(lowering, grad_out, compute)

    def centered(index: Index) -> Expr:
        return input.at(index) - mean.at(axes.keep(index))

    (total,) = fold(lowering, "sum", axes, grad, [compute])
    projected = lambda index: grad(index) * centered(index)  # noqa: E731 - one expression
    (projection,) = fold(lowering, "sum", axes, projected, [compute])
    channels = _Channels(lowering, compute, weight, deviation, total, projection, count_of(axes.count, compute))
    slope, share = (channels.slope(), channels.share()) if train else (None, None)
    scale = channels.scale()

    def value(index: Index) -> Expr:
        channel, item = axes.keep(index), grad(index)
        if slope is not None and share is not None:
            item = item - share.at(channel)
            item = item - centered(index) * slope.at(channel)
        return item * scale.at(channel)

    gradient = lowering.map(input.sizes, lowering.output_dtype, value) if is_wanted(lowering, 0) else None
    return (
        gradient,
        as_announced(lowering, channels.along(), 1) if is_wanted(lowering, 1) else None,
        as_announced(lowering, total, 2) if is_wanted(lowering, 2) else None,
    )


@dataclass(frozen=True)
class _Channels:
    """What a gradient has one value of per channel. Each is a small map of its own: points read it, and compute little.

    Attributes:
        deviation: its reciprocal.
        total: sum of the gradient.
        projection: sum of the gradient times the distance from the mean.
        count: of values of a channel.
    """

    lowering: Lowering
    compute: torch.dtype
    weight: Tensor | None
    deviation: Tensor
    total: Tensor
    projection: Tensor
    count: Expr

    def scale(self) -> Tensor:
        """The forward's factor."""
        if self.weight is None:
            return self.deviation
        return self._map(
            lambda index: scaled(self.lowering, self.weight, self.compute, self.deviation.at(index), index)
        )

    def share(self) -> Tensor:
        """The mean of the gradient."""
        return self._map(lambda index: self.total.at(index) / self.count)

    def slope(self) -> Tensor:
        """What the gradient has in common with the input, per distance from the mean."""

        def value(index: Index) -> Expr:
            # One after the other: the square alone may be too large.
            once = self.projection.at(index) / self.count * self.deviation.at(index)
            return once * self.deviation.at(index)

        return self._map(value)

    def along(self) -> Tensor:
        """The gradient of the weight."""
        return self._map(lambda index: self.projection.at(index) * self.deviation.at(index))

    def _map(self, value: Callable[[Index], Expr]) -> Tensor:
        return self.lowering.map(self.total.sizes, self.compute, value)


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
        return lowering.in_type(mean, compute), lowering.in_type(spread, compute)
    return lowering.in_type(mean, compute), running_deviation(lowering, spread, eps, compute)
