"""Rules of the negative log likelihood of classes, and of its gradient.

Place: rule module, see ``lower.rules``; with ``log_softmax`` it is the cross entropy.
Invariants: a target that is ignored adds nothing to sum or weight and gets no gradient. A target out of range, for
which eager raises, is clamped and told like every run-time index (see ``access``); the gradient's is the same target.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, IndexValue, apply, compute_dtype
from mixbackend.backends.codegen.lower.access import addressable, load, run_time_index
from mixbackend.backends.codegen.lower.axes import axes_of, fold
from mixbackend.backends.codegen.lower.broadcast import read
from mixbackend.backends.codegen.lower.loss import MEAN, NONE
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.saved_statistics import announced
from mixbackend.backends.codegen.lower.tensor import Index, Tensor


@rule("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss(
    lowering: Lowering, self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """``-weight[y] x[y]``, and the sum of the weights.

    Losses that are not reduced have no such sum, unless it is one sample without a batch: eager says 0.
    """
    _check(self, target)
    compute, dtype = compute_dtype(lowering.output_dtype), lowering.output_dtype
    source = addressable(lowering, self)
    factors = None if weight is None else addressable(lowering, weight)
    place, zero = _class_place(self), Constant(compute, 0.0)

    def at_class(index: Index, of: Callable[..., Expr]) -> Expr:
        """What ``of`` makes of the class's symbol and its binding; zero where the target is ignored."""
        truth = target.at(index)
        is_counted = _is_counted(truth, ignore_index)
        symbol, bindings = run_time_index(lowering, truth, self.sizes[place], wrap=False, wanted=is_counted)
        return apply("where", is_counted, of(symbol, bindings), zero)

    def weight_at(symbol: object, bindings: tuple) -> Expr:
        if factors is None:
            return Constant(compute, 1.0)
        return lowering.cast(load(factors, (symbol,), bindings), compute)

    def loss_at(index: Index) -> Expr:
        def of(symbol: object, bindings: tuple) -> Expr:
            item = lowering.cast(load(source, _with_class(index, place, symbol), bindings), compute)
            return -(weight_at(symbol, bindings) * item if factors is not None else item)

        return at_class(index, of)

    weight_dtype = announced(lowering, 1).dtype
    if reduction == NONE and self.rank > 1:
        nothing = lowering.map((), weight_dtype, lambda index: zero)
        return lowering.map(target.sizes, dtype, loss_at), nothing
    axes = axes_of(target, None)
    (total,) = fold(lowering, "sum", axes, loss_at, [compute])
    (mass,) = fold(lowering, "sum", axes, lambda index: at_class(index, weight_at), [compute])
    function = (lambda index: total.at(index) / mass.at(index)) if reduction == MEAN else total.at
    return lowering.map((), dtype, function), lowering.map((), weight_dtype, mass.at)


@rule("aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default")
def nll_loss_backward(
    lowering: Lowering,
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """``-weight[y] grad`` at the target's class, zero at all others."""
    _check(self, target)
    compute, place = compute_dtype(lowering.output_dtype), _class_place(self)
    zero = Constant(compute, 0.0)

    def value(index: Index) -> Expr:
        truth = target.at((*index[:place], *index[place + 1 :]))
        is_class = apply("eq", truth, IndexValue(torch.int64, index[place]))
        sample = (*index[:place], *index[place + 1 :]) if reduction == NONE else ()
        gradient = -read(grad_output, sample, compute)
        if weight is not None:
            gradient = gradient * lowering.cast(weight.at((index[place],)), compute)
        if reduction == MEAN:
            gradient = gradient / lowering.cast(total_weight.at(()), compute)
        counted = is_class & _is_counted(truth, ignore_index)
        return apply("where", counted, gradient, zero)

    return lowering.map(self.sizes, lowering.output_dtype, value)


def _check(tensor: Tensor, target: Tensor) -> None:
    """Refuse other types and ranks than those of classes and scores.

    Raises:
        RefusedError: scores that are not floating, targets that are no int64 or not one per sample.
    """
    if target.rank != tensor.rank - 1:
        raise RefusedError("rank", f"targets of {target.rank} dimensions for scores of {tensor.rank}")
    if not tensor.dtype.is_floating_point:
        raise RefusedError("dtype", f"scores of type {tensor.dtype}")
    if target.dtype != torch.int64:
        raise RefusedError("dtype", f"targets of type {target.dtype}")


def _class_place(tensor: Tensor) -> int:
    """Which dimension the classes are: the second, or the only one."""
    return 1 if tensor.rank > 1 else 0


def _with_class(index: Index, place: int, symbol: object) -> tuple:
    return (*index[:place], symbol, *index[place:])


def _is_counted(truth: Expr, ignore_index: int) -> Expr:
    return apply("ne", truth, Constant(torch.int64, int(ignore_index)))
