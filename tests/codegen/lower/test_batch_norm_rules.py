"""Batch norm with its gradient against eager and float64."""

from __future__ import annotations

import pytest
import torch

aten = torch.ops.aten
FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
CASES = [*((dtype, False) for dtype in FLOATING), (torch.float32, True)]
SPACES = [(), (7,), (4, 3)]


def values(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0, offset: float = 0.5) -> torch.Tensor:
    """Random numbers around an offset."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).add(offset).to(dtype)


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Weight, bias, running mean, running variance of five channels."""
    weight, bias, mean, variance = (values(5, dtype=dtype, seed=seed) for seed in (1, 2, 3, 4))
    return [weight, bias, mean, variance.abs() + 0.1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dtype", "dynamic"), CASES)
@pytest.mark.parametrize("space", SPACES)
def test_inference(check_lowering, dtype, dynamic, space):
    x, own = values(4, 5, *space, dtype=dtype), parameters(dtype)
    # The empty saved statistics are announced in another type than eager's; nobody reads them.
    first = lambda *t: aten._native_batch_norm_legit_no_training(*t, 0.1, 1e-5)[0]  # noqa: E731
    check_lowering(first, [x, *own], dynamic=dynamic)
    if dtype in (torch.bfloat16, torch.float16):
        check_lowering(first, [x, *parameters()], dynamic=dynamic)
    check_lowering(
        lambda x, m, v: aten._native_batch_norm_legit_no_training(x, None, None, m, v, 0.1, 1e-5), [x, *own[2:]]
    )
    check_lowering(lambda *t: aten.native_batch_norm(*t, False, 0.1, 1e-5)[0], [x, *own])
    check_lowering(lambda *t: aten._native_batch_norm_legit_functional(*t, False, 0.1, 1e-5)[0], [x, *own])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("dtype", "dynamic"), CASES)
@pytest.mark.parametrize("space", SPACES)
def test_training(check_lowering, dtype, dynamic, space):
    x, (weight, bias, mean, variance) = values(4, 5, *space, dtype=dtype), parameters()
    check_lowering(
        lambda x, w, b: aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5),
        [x, weight.to(dtype), bias.to(dtype)],
        dynamic=dynamic,
    )
    check_lowering(lambda x: aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5), [x], dynamic=dynamic)
    if dtype in (torch.float32, torch.float64):
        own = [tensor.to(dtype) for tensor in (weight, bias, mean, variance)]
        for momentum in (0.1, 0.0, 1.0):
            call = lambda *t, m=momentum: aten._native_batch_norm_legit_functional(*t, True, m, 1e-5)  # noqa: E731
            check_lowering(call, [x, *own], dynamic=dynamic)
        check_lowering(lambda *t: aten._batch_norm_with_update_functional(*t, 0.1, 1e-5), [x, *own], dynamic=dynamic)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dtype", "dynamic"), CASES)
@pytest.mark.parametrize("train", [False, True])
def test_backward(check_lowering, dtype, dynamic, train):
    for space in SPACES:
        x, grad = values(4, 5, *space, dtype=dtype), values(4, 5, *space, dtype=dtype, seed=5, offset=0.1)
        weight, _, mean, variance = parameters(dtype)
        _, saved_mean, saved_deviation = aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)

        def gradients(*t):
            return aten.native_batch_norm_backward(*t, train, 1e-5, [True, True, True])

        check_lowering(gradients, [grad, x, weight, mean, variance, saved_mean, saved_deviation], dynamic=dynamic)


def test_backward_in_part(check_lowering):
    x, grad, (weight, _, mean, variance) = values(4, 5, 6), values(4, 5, 6, seed=5), parameters()
    for places in ((0,), (1,), (2,), (0, 2)):
        for train in (False, True):
            mask = [place in places for place in range(3)]

            def kept(*t, train=train, mask=mask, places=places):
                results = aten.native_batch_norm_backward(*t, *t[-2:], train, 1e-5, mask)
                return tuple(results[place] for place in places)

            check_lowering(kept, [grad, x, weight, mean, variance])


def test_mixed_types(check_lowering):
    """Parameters in float32 beside values in 16 bits."""
    x, grad, own = values(4, 5, 6, dtype=torch.bfloat16), values(4, 5, 6, dtype=torch.bfloat16, seed=5), parameters()
    functional = lambda *t: aten._native_batch_norm_legit_functional(*t, True, 0.1, 1e-5)  # noqa: E731
    check_lowering(functional, [x, *own])
    check_lowering(functional, [x, *(tensor.bfloat16() for tensor in own)])

    def gradients(grad, x, weight, mean, variance):
        return aten.native_batch_norm_backward(grad, x, weight, None, None, mean, variance, True, 1e-5, [True] * 3)

    check_lowering(gradients, [grad, x, own[0], own[2], own[3]])


def test_large_values(check_lowering):
    x, own = values(8, 5, 30, 30, offset=300.0), parameters()
    check_lowering(lambda *t: aten._native_batch_norm_legit_functional(*t, True, 0.1, 1e-5), [x, *own])


def test_strides(check_lowering):
    own = parameters()
    channels_last = values(4, 5, 6, 3).to(memory_format=torch.channels_last)
    for x in (channels_last, values(5, 4, 3).transpose(0, 1), values(4, 5, 1).expand(4, 5, 6)):
        check_lowering(lambda *t: aten._native_batch_norm_legit_functional(*t, True, 0.1, 1e-5), [x, *own])
        check_lowering(lambda *t: aten._native_batch_norm_legit_no_training(*t, 0.1, 1e-5), [x, *own])


def test_updates_in_place_are_refused(refused):
    x, own = values(4, 5, 6), parameters()
    assert refused(lambda *t: aten.native_batch_norm(*t, True, 0.1, 1e-5)[0], [x, *own]) == ["effect"]
