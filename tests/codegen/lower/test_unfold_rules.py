"""Windows taken out and put back; against eager."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

aten = torch.ops.aten
DTYPES = [torch.float32, torch.bfloat16]

# kernel, dilation, padding, stride
WINDOWS = [
    ((3, 3), (1, 1), (1, 1), (1, 1)),
    ((2, 2), (1, 1), (0, 0), (2, 2)),
    ((3, 2), (2, 1), (1, 0), (2, 3)),
    ((1, 1), (1, 1), (0, 0), (1, 1)),
    ((6, 6), (1, 1), (2, 3), (1, 2)),
]


def _values(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return (torch.randn(sizes, generator=generator) * 3).to(dtype)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arguments", WINDOWS)
def test_columns_and_back(check_lowering, dtype, arguments):
    x = _values(2, 3, 7, 9, dtype=dtype)
    check_lowering(lambda x: aten.im2col(x, *arguments), [x])
    columns = _values(*aten.im2col(x, *arguments).shape, dtype=dtype)
    check_lowering(lambda c: aten.col2im(c, (7, 9), *arguments), [columns])


def test_columns_of_other_layouts_and_sizes(check_lowering):
    x = _values(2, 3, 7, 9)
    check_lowering(lambda x: functional.unfold(x, 3, padding=1), [x.contiguous(memory_format=torch.channels_last)])
    check_lowering(lambda x: functional.unfold(x, 3, padding=1), [x[0].transpose(1, 2)])
    check_lowering(lambda x: functional.unfold(x, 3, padding=1), [x], dynamic=True)
    check_lowering(lambda c: functional.fold(c, (4, 5), (2, 2)), [_values(12, 12)])
    check_lowering(lambda x: functional.unfold(x, 3), [_values(0, 3, 7, 9)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "size", "step"), [(0, 3, 1), (1, 3, 2), (2, 2, 3), (-1, 4, 4), (1, 34, 1)])
def test_gradient_of_unfold(check_lowering, dtype, dim, size, step):
    sizes = [5, 45, 8]
    gradient = _values(*torch.empty(sizes).unfold(dim, size, step).shape, dtype=dtype)
    check_lowering(lambda g: aten.unfold_backward(g, sizes, dim, size, step), [gradient])
