"""Losses with their gradients against eager and float64."""

from __future__ import annotations

import math

import pytest
import torch

aten = torch.ops.aten
FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
CASES = [*((dtype, False) for dtype in FLOATING), (torch.float32, True)]
REDUCTIONS = (0, 1, 2)
LOSSES = {
    "mse": (aten.mse_loss, aten.mse_loss_backward, ()),
    "smooth": (aten.smooth_l1_loss, aten.smooth_l1_loss_backward, (0.7,)),
    "sharp": (aten.smooth_l1_loss, aten.smooth_l1_loss_backward, (0.0,)),
    "huber": (aten.huber_loss, aten.huber_loss_backward, (0.7,)),
    "margin": (aten.soft_margin_loss, aten.soft_margin_loss_backward, ()),
}


def values(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Random numbers."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def probabilities(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Random numbers from 0 to 1, both ends among them."""
    numbers = values(*sizes, seed=seed).sigmoid()
    numbers.view(-1)[:2] = torch.tensor([0.0, 1.0])
    return numbers.to(dtype)


def classes(*sizes: int, count: int = 5, ignored: int = -100) -> torch.Tensor:
    """Random classes, some ignored."""
    numbers = torch.randint(0, count, sizes, generator=torch.Generator().manual_seed(7))
    numbers.view(-1)[1::4] = ignored
    return numbers


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("dtype", "dynamic"), CASES)
@pytest.mark.parametrize("name", LOSSES)
def test_distances(check_lowering, dtype, dynamic, name):
    forward, backward, options = LOSSES[name]
    x, y = values(4, 5, dtype=dtype), values(4, 5, dtype=dtype, seed=1)
    x[0, 0] = y[0, 0]
    for reduction in REDUCTIONS:
        grad = values(*((4, 5) if reduction == 0 else ()), dtype=dtype, seed=2)
        check_lowering(lambda x, y, r=reduction: forward(x, y, r, *options), [x, y], dynamic=dynamic)
        check_lowering(lambda g, x, y, r=reduction: backward(g, x, y, r, *options), [grad, x, y], dynamic=dynamic)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("types", [(torch.float16, torch.float32), (torch.float32, torch.float64)])
@pytest.mark.parametrize("name", LOSSES)
def test_distances_between_two_types(check_lowering, types, name):
    """Some losses have the type of the first operand, others the wider one; all are computed in the wider one."""
    forward, backward, options = LOSSES[name]
    for first, second in (types, types[::-1]):
        x, y = values(4, 5, dtype=first), values(4, 5, dtype=second, seed=1)
        for reduction in REDUCTIONS:
            check_lowering(lambda x, y, r=reduction: forward(x, y, r, *options), [x, y])
        if name != "huber":  # eager takes no two types there
            grad = values(4, 5, dtype=second, seed=2)
            check_lowering(lambda g, x, y: backward(g, x, y, 0, *options), [grad, x, y])


def test_distances_of_special_values(check_lowering):
    x, y = values(3, 4), values(3, 4, seed=1)
    x[0, 1], x[2, 3] = math.nan, 0.0
    for forward, backward, options in LOSSES.values():
        check_lowering(lambda x, y, f=forward, o=options: f(x, y, 0, *o), [x, y])
        check_lowering(lambda x, y, f=backward, o=options: f(x, x, y, 0, *o), [x, y])
    y[1, 1], x[2, 2] = math.inf, -math.inf
    # Without the margin, whose gradient eager has as infinity over infinity.
    for forward, backward, options in (entry for name, entry in LOSSES.items() if name != "margin"):
        check_lowering(lambda x, y, f=forward, o=options: f(x, y, 0, *o), [x, y])
        check_lowering(lambda x, y, f=backward, o=options: f(x, x, y, 0, *o), [x, y])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("dtype", "dynamic"), CASES)
def test_binary_cross_entropy(check_lowering, dtype, dynamic):
    x, y, weight = probabilities(4, 5, dtype=dtype), probabilities(4, 5, dtype=dtype, seed=1), values(4, 5, dtype=dtype)
    for reduction in REDUCTIONS:
        grad = values(*((4, 5) if reduction == 0 else ()), dtype=dtype, seed=2)
        forward = lambda *t, r=reduction: aten.binary_cross_entropy(*t, r)  # noqa: E731
        backward = lambda *t, r=reduction: aten.binary_cross_entropy_backward(*t, r)  # noqa: E731
        check_lowering(forward, [x, y, weight], dynamic=dynamic)
        check_lowering(lambda x, y, f=forward: f(x, y, None), [x, y], dynamic=dynamic)
        check_lowering(backward, [grad, x, y, weight], dynamic=dynamic)
        check_lowering(lambda g, x, y, f=backward: f(g, x, y, None), [grad, x, y], dynamic=dynamic)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("dtype", "dynamic"), CASES)
def test_binary_cross_entropy_of_logits(check_lowering, dtype, dynamic):
    x, y = values(4, 5, dtype=dtype) * 20, probabilities(4, 5, dtype=dtype, seed=1)
    weight, positive = values(5, dtype=dtype).abs(), values(5, dtype=dtype, seed=2).abs()
    for reduction in REDUCTIONS:
        loss = lambda *t, r=reduction: aten.binary_cross_entropy_with_logits(*t, r)  # noqa: E731
        check_lowering(loss, [x, y, weight, positive], dynamic=dynamic)
        check_lowering(lambda x, y, w, f=loss: f(x, y, w, None), [x, y, weight], dynamic=dynamic)
        check_lowering(lambda x, y, p, f=loss: f(x, y, None, p), [x, y, positive], dynamic=dynamic)
        check_lowering(lambda x, y, f=loss: f(x, y, None, None), [x, y], dynamic=dynamic)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("dtype", "dynamic"), CASES)
@pytest.mark.parametrize("space", [None, (), (3, 2)])
def test_likelihood(check_lowering, dtype, dynamic, space):
    """One sample without a batch, samples, and samples in the plane."""
    sizes = (5,) if space is None else (7, 5, *space)
    targets = torch.tensor(3) if space is None else classes(7, *space)
    x, weight = values(*sizes, dtype=dtype), values(5, dtype=dtype, seed=1).abs()
    forward, backward = aten.nll_loss_forward, aten.nll_loss_backward
    if space:
        forward, backward = aten.nll_loss2d_forward, aten.nll_loss2d_backward
    for reduction in REDUCTIONS:
        grad = values(*(targets.shape if reduction == 0 else ()), dtype=dtype, seed=2)
        for factor in (None, weight):
            given = [] if factor is None else [factor]
            loss = lambda x, y, *w, r=reduction: forward(x, y, *(w or (None,)), r, -100)  # noqa: E731
            check_lowering(loss, [x, targets, *given], dynamic=dynamic)
            total = forward(x, targets, factor, reduction, -100)[1]
            slope = lambda g, x, y, t, *w, r=reduction: backward(g, x, y, *(w or (None,)), r, -100, t)  # noqa: E731
            check_lowering(slope, [grad, x, targets, total, *given], dynamic=dynamic)


def test_ignored_classes(check_lowering):
    x, grad, total = values(7, 5), values(), torch.tensor(3.0)
    for ignored in (2, -1):
        targets = classes(7, ignored=ignored)
        check_lowering(lambda x, y, i=ignored: aten.nll_loss_forward(x, y, None, 1, i), [x, targets])
        slope = lambda g, x, y, t, i=ignored: aten.nll_loss_backward(g, x, y, None, 1, i, t)  # noqa: E731
        check_lowering(slope, [grad, x, targets, total])
    for reduction in REDUCTIONS:
        one = lambda x, y, r=reduction: aten.nll_loss_forward(x, y, None, r, 2)  # noqa: E731
        check_lowering(one, [values(5), torch.tensor(2)])
    nobody = torch.full((7,), -100)
    check_lowering(lambda x, y: aten.nll_loss_forward(x, y, None, 1, -100), [x, nobody])
    check_lowering(lambda *t: aten.nll_loss_backward(*t[:3], None, 1, -100, t[3]), [grad, x, nobody, total * 0])


def test_no_points(check_lowering):
    for reduction in REDUCTIONS:
        check_lowering(lambda x, y, r=reduction: aten.mse_loss(x, y, r), [values(0, 5), values(0, 5)])
        check_lowering(lambda x, y, r=reduction: aten.nll_loss_forward(x, y, None, r, -100), [values(0, 5), classes(0)])


def test_cross_entropy_of_a_computed_input(check_lowering):
    """What is gathered from need not be stored anywhere before."""
    x, targets = values(7, 5), classes(7)
    check_lowering(lambda x, y: torch.nn.functional.cross_entropy(x * 2, y), [x, targets])
    check_lowering(lambda x, y: torch.nn.functional.cross_entropy(x.t(), y), [values(5, 7), targets])


def test_losses_of_integers_are_refused(refused):
    assert refused(lambda x, y: aten.mse_loss(x, y, 2), [classes(7, 5), classes(7, 5)]) == ["dtype"]
