"""Convolutions of one point as products: what they compute, what follows in the same kernel, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from mixbackend.backends.codegen.ir.stages import Reduce, is_product

TYPES = (torch.float16, torch.bfloat16)


def _values(*sizes: int, dtype: torch.dtype = torch.float16) -> Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(sizes, generator=generator).to(dtype)


def _image(*sizes: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return _values(*sizes, dtype=dtype).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("stride", [1, 2, (1, 3)], ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_pixels_times_a_weight(check_lowering: Any, dtype: torch.dtype, stride: Any, biased: bool) -> None:
    operands = [_image(2, 24, 5, 7, dtype=dtype), _values(16, 24, 1, 1, dtype=dtype)]
    operands += [_values(16, dtype=dtype)] if biased else []
    graph = check_lowering(lambda x, w, b=None: F.conv2d(x, w, b, stride), operands)
    (product,) = filter(is_product, graph.stages)
    assert isinstance(product, Reduce) and len(product.reduced) == 1


def test_an_image_that_is_computed_is_in_memory_first(check_lowering: Any) -> None:
    operands = [_image(2, 24, 5, 7), _values(16, 24, 1, 1), _values(16)]
    check_lowering(lambda x, w, b: F.relu(F.conv2d(F.relu(x) * 2, w, b)), operands)


def test_single_pixels_have_any_layout(check_lowering: Any) -> None:
    check_lowering(F.conv2d, [_values(3, 24, 1, 1), _values(16, 24, 1, 1), _values(16)])


def test_batches_of_any_size(check_lowering: Any) -> None:
    check_lowering(F.conv2d, [_image(3, 24, 5, 7), _values(16, 24, 1, 1), _values(16)], dynamic=True)


@pytest.mark.parametrize(
    ("code", "image", "weight", "padding"),
    [
        ("layout", _values(2, 24, 5, 7), _values(16, 24, 1, 1), 0),
        ("unknown-op", _image(2, 24, 5, 7), _values(16, 24, 3, 3), 1),
        ("unknown-op", _image(2, 24, 5, 7), _values(16, 24, 1, 1), 1),
        ("dtype", _image(2, 24, 5, 7, dtype=torch.float64), _values(16, 24, 1, 1, dtype=torch.float64), 0),
    ],
    ids=["row-major", "windows", "padding", "float64"],
)
def test_what_is_no_such_product_says_why(refused: Any, code: str, image: Tensor, weight: Tensor, padding: int) -> None:
    assert refused(lambda x, w: F.conv2d(x, w, padding=padding), [image, weight]) == [code]


def test_transposed_and_grouped_ones_are_refused(refused: Any) -> None:
    image = _image(2, 24, 5, 7)
    assert refused(lambda x, w: F.conv_transpose2d(x, w), [image, _values(24, 16, 1, 1)]) == ["unknown-op"]
    assert refused(lambda x, w: F.conv2d(x, w, groups=2), [image, _values(16, 12, 1, 1)]) == ["unknown-op"]
    assert refused(F.conv2d, [image[:0], _values(16, 24, 1, 1)]) == ["argument"]
