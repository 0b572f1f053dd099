"""Padding and its gradients against eager."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import mixbackend

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def _values(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return (torch.randn(sizes, generator=generator) * 3).to(dtype)


@pytest.mark.sampled(14)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64, torch.bool])
@pytest.mark.parametrize(
    "pad", [(1, 2), (0, 0), (-1, 2), (2, -3), (1, 2, 3, 0), (-1, -1, 2, -1), (1, 1, 0, 2, -1, 3), (0, 0, 4, -4)]
)
def test_constant_padding(check_lowering, dtype, pad):
    check_lowering(lambda x: functional.pad(x, pad, value=1), [_values(3, 4, 5, dtype=dtype)])


@pytest.mark.parametrize("value", [0.1, float("-inf"), float("nan"), 2.5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_values(check_lowering, value, dtype):
    check_lowering(lambda x: functional.pad(x, (1, 1), value=value), [_values(2, 3, dtype=dtype).t()])


def test_constant_padding_of_computed_values_and_of_nothing(check_lowering):
    check_lowering(lambda x: functional.pad(functional.pad(x, (1, 0), value=2.0), (0, 1), value=3.0), [_values(2, 3)])
    check_lowering(lambda x: functional.pad(x, (1, 2)), [_values(2, 0)])
    check_lowering(lambda x: functional.pad(x, (1, -2)), [_values(0, 3)])
    check_lowering(lambda x: functional.pad(x, (1, 2)), [_values(3)[1:]])


@pytest.mark.parametrize("pad", [(1, 2, 0, 1), (-1, 2, 0, -1)])
def test_constant_padding_with_symbolic_sizes(check_lowering, pad):
    check_lowering(lambda x: functional.pad(x, pad), [_values(3, 4, 5)], dynamic=True)


_FRAMES = {1: [(1, 2), (0, 3), (3, 3)], 2: [(1, 2, 0, 3), (3, 3, 2, 2)], 3: [(1, 2, 0, 1, 2, 1)]}
_SIZES = {1: (5,), 2: (4, 6), 3: (3, 4, 5)}
_CASES = [(rank, frame) for rank in _FRAMES for frame in _FRAMES[rank]]


@pytest.mark.sampled(13)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize(("rank", "frame"), _CASES)
def test_mirrored_and_repeated_frames(check_lowering, dtype, mode, rank, frame):
    check_lowering(lambda x: functional.pad(x, frame, mode=mode), [_values(2, 3, *_SIZES[rank], dtype=dtype)])
    check_lowering(lambda x: functional.pad(x, frame, mode=mode), [_values(3, *_SIZES[rank], dtype=dtype)])


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_frames_that_crop_or_are_wide(check_lowering, mode):
    check_lowering(lambda x: functional.pad(x, (-1, 2, 1, -2), mode=mode), [_values(2, 3, 6, 7)])
    check_lowering(lambda x: functional.pad(x, (4, 4, 3, 3), mode=mode), [_values(1, 2, 4, 5).transpose(0, 1)])


@pytest.mark.sampled(13)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["reflection", "replication"])
@pytest.mark.parametrize(("rank", "frame"), _CASES)
def test_gradients_of_frames(check_lowering, dtype, mode, rank, frame):
    name = f"{mode}_pad{rank}d"
    forward, backward = getattr(torch.ops.aten, name), getattr(torch.ops.aten, f"{name}_backward")
    x = _values(2, 3, *_SIZES[rank], dtype=dtype)
    gradient = _values(*forward(x, frame).shape, dtype=dtype)
    check_lowering(lambda g, x: backward(g, x, frame), [gradient, x])


@pytest.mark.parametrize("mode", ["reflection", "replication"])
def test_gradients_of_frames_that_crop(check_lowering, mode):
    forward, backward = getattr(torch.ops.aten, f"{mode}_pad2d"), getattr(torch.ops.aten, f"{mode}_pad2d_backward")
    x, frame = _values(2, 3, 6, 7), (-1, 2, 1, -2)
    check_lowering(lambda g, x: backward(g, x, frame), [_values(*forward(x, frame).shape), x])


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_frames_with_symbolic_sizes(check_lowering, mode):
    check_lowering(lambda x: functional.pad(x, (1, 2), mode=mode), [_values(2, 3, 5)], dynamic=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["replicate", "reflect", "circular"])
@pytest.mark.parametrize("amounts", [(1, 2), (-1, 1), (2, -1)])
def test_sizes_that_are_differences_of_sizes(mode: str, amounts: tuple[int, int]) -> None:
    """Whether such a size is positive is not seen by its expression, and ``Min`` and ``Max`` compare it."""

    def function(value: torch.Tensor) -> torch.Tensor:
        half = value.chunk(2, -1)[-1] * 1
        return torch.nn.functional.pad(half, amounts, mode=mode)

    backend = mixbackend.auto({"backends": ["codegen", "eager"]})
    compiled = torch.compile(function, backend=backend, dynamic=True)
    for columns in (9, 8, 7):
        value = torch.arange(6.0 * columns).view(6, columns)
        assert torch.equal(compiled(value), function(value))
    assert not backend.report().events
