"""cat and stack against eager."""

from __future__ import annotations

import pytest
import torch

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]


def _values(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return (torch.randn(sizes, generator=generator) * 3).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat_of_every_type(check_lowering, dtype, dim):
    sizes = [[2, 3, 4], [2, 3, 4], [2, 3, 4]]
    sizes[1][dim], sizes[2][dim] = 1, 0
    check_lowering(lambda *parts: torch.cat(parts, dim), [_values(*each, dtype=dtype) for each in sizes])


@pytest.mark.sampled(9)
@pytest.mark.parametrize("first", DTYPES)
@pytest.mark.parametrize("second", DTYPES)
def test_cat_promotes(check_lowering, first, second):
    check_lowering(lambda a, b: torch.cat([a, b]), [_values(3, 2, dtype=first), _values(1, 2, dtype=second)])


def test_cat_leaves_out_empty_vectors(check_lowering):
    check_lowering(lambda a, b: torch.cat([a, b], 1), [torch.empty(0), _values(3, 2)])
    check_lowering(lambda a, b: torch.cat([a, b]), [torch.empty(0), torch.empty(0)])


def test_cat_of_one_tensor_twice_and_odd_strides(check_lowering):
    check_lowering(lambda a: torch.cat([a, a]), [_values(3, 2).t()])
    check_lowering(lambda a, b: torch.cat([a, b], 1), [_values(4, 3)[::2].expand(2, 3), _values(1, 3).expand(2, 3)])


def test_cat_keeps_the_memory_format(check_lowering):
    inputs = [_values(2, 3, 4, 5).to(memory_format=torch.channels_last) for _ in range(2)]
    check_lowering(lambda a, b: torch.cat([a, b], 1), inputs)


@pytest.mark.parametrize("dim", [0, 1])
def test_cat_with_symbolic_sizes(check_lowering, dim):
    check_lowering(lambda a, b: torch.cat([a, b, a], dim), [_values(3, 4), _values(3, 4)], dynamic=True)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_stack(check_lowering, dim):
    check_lowering(lambda a, b: torch.stack([a, b, a], dim), [_values(3, 4), _values(4, 3).t()])
    check_lowering(lambda a, b: torch.stack([a, b], dim), [_values(3, 4), _values(3, 4)], dynamic=True)


def test_stack_of_scalars_and_mixed_types(check_lowering):
    check_lowering(lambda a, b: torch.stack([a, b]), [torch.tensor(1.0), torch.tensor(2.0)])
    check_lowering(lambda a, b: torch.stack([a, b]), [_values(3, dtype=torch.int64), _values(3)])
