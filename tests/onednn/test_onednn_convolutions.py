"""Convolutions: ranks, groups, layouts, packing, what is refused."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional

from mixbackend.contracts import Unsupported

aten = torch.ops.aten

_SIZES = {1: (2, 6, 11), 2: (2, 6, 9, 8), 3: (2, 6, 5, 6, 5)}


def _convolution(rank, stride=1, padding=0, dilation=1, groups=1, transposed=False, extra=0):
    each = [[number] * rank for number in (stride, padding, dilation)]
    return lambda x, w, b: aten.convolution(x, w, b, *each, transposed, [extra] * rank, groups)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("constants", [(), (1, 2)], ids=["live", "constant"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_arguments(bench, rank, constants):
    x, b = torch.randn(_SIZES[rank]), torch.randn(12)
    for groups, (stride, padding, dilation) in itertools.product((1, 2, 6), ((1, 0, 1), (2, 1, 1), (1, 2, 2))):
        w = torch.randn(12, 6 // groups, *[3] * rank)
        function = _convolution(rank, stride, padding, dilation, groups)
        bench.check(function, x, w, b, constants=constants)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed(bench, rank):
    x = torch.randn(_SIZES[rank])
    for groups, (stride, padding, extra, dilation) in itertools.product(
        (1, 2), ((1, 0, 0, 1), (2, 1, 1, 1), (3, 0, 2, 2))
    ):
        w, b = torch.randn(6, 4, *[3] * rank), torch.randn(4 * groups)
        function = _convolution(rank, stride, padding, dilation, groups, True, extra)
        bench.check(function, x, w, b, constants=(1, 2))


def _images() -> dict[str, torch.Tensor]:
    x = torch.randn(2, 6, 8, 8)
    return {
        "row-major": x,
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "turned": x.transpose(2, 3),
        "gaps": torch.randn(2, 6, 8, 11)[..., :8],
        "some channels": torch.randn(2, 9, 8, 8).contiguous(memory_format=torch.channels_last)[:, :6],
        "every second": torch.randn(2, 6, 16, 16)[:, :, ::2, ::2],
        "equal images": torch.randn(1, 6, 8, 8).expand(2, 6, 8, 8),
        "equal channels": torch.randn(2, 1, 8, 8).expand(2, 6, 8, 8),
        "overlapping": torch.randn(600).as_strided((2, 6, 8, 8), (100, 10, 5, 1)),
    }


@pytest.mark.parametrize("constants", [(), (1, 2)], ids=["live", "constant"])
def test_layouts(bench, constants):
    weights = [torch.randn(4, 6, 3, 3), torch.randn(4, 6, 3, 3).contiguous(memory_format=torch.channels_last)]
    weights += [torch.randn(6, 4, 3, 3).transpose(0, 1), torch.randn(4, 6, 3, 5)[..., :3]]
    for traced in ("row-major", "channels last"):
        built = bench.build(
            _convolution(2, padding=1), _images()[traced], weights[0], torch.randn(4), constants=constants
        )
        for x, w in itertools.product(_images().values(), weights[:2]):
            built.check(x, w, torch.randn(4))
        for w in weights:
            built.check(_images()[traced], w, torch.randn(8)[::2])


def test_channels_last_stays_channels_last(bench):
    x = torch.randn(2, 6, 8, 8).contiguous(memory_format=torch.channels_last)
    w, b = torch.randn(4, 6, 3, 3), torch.randn(4)
    built = bench.build(_convolution(2), x, w, b, constants=(1, 2))
    bound = built.bind([x, w, b])
    assert bound.constant_bytes >= 4 * w.numel() and bound.notes == ("1 weights packed",)
    for run in (built.compiled.run, bound.run):
        (result,) = run([x, w, b])
        assert result.is_contiguous(memory_format=torch.channels_last)


def test_rows_stay_rows_where_somebody_needs_them(bench):
    """A packed weight would turn the result, which somebody would have to turn back."""
    x, w, b = torch.randn(2, 6, 8, 8), torch.randn(4, 6, 3, 3), torch.randn(4)
    built = bench.build(_convolution(2), x, w, b, constants=(1, 2))
    bound = built.bind([x, w, b])
    assert bound.notes == () and bound.constant_bytes == 0
    assert bound.run([x, None, None])[0].is_contiguous()


def test_ambiguous_layouts(bench):
    for shape in ((2, 6, 1, 1), (1, 6, 5, 5), (1, 1, 5, 5), (2, 6, 1, 5)):
        for form in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(shape).contiguous(memory_format=form)
            bench.check(_convolution(2), x, torch.randn(4, shape[1], 1, 1), torch.randn(4), constants=(1, 2))


def test_an_empty_batch(bench):
    bench.check(_convolution(2), torch.randn(0, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4), constants=(1, 2))


def test_images_without_channels_are_refused(bench):
    refusals = bench.refusals(_convolution(2), torch.randn(2, 0, 8, 8), torch.randn(4, 0, 3, 3), torch.randn(4))
    assert [item.code for item in refusals] == ["layout"]


def test_bfloat16(bench):
    x, w, b = (torch.randn(*shape).bfloat16() for shape in ((2, 6, 9, 8), (4, 6, 3, 3), (4,)))
    refused = bench.refusals(_convolution(2), x, w, b)
    if refused:
        assert [item.code for item in refused] == ["dtype"]
    else:
        bench.check(_convolution(2), x, w, b, constants=(1, 2))


def test_backward_is_torchs_own(bench):
    x, w = torch.randn(2, 6, 9, 8), torch.randn(4, 6, 3, 3)
    grad = torch.randn(2, 4, 7, 6)

    def function(grad, x, w):
        return aten.convolution_backward(grad, x, w, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True])

    bench.check(function, grad, x, w)
    (refusal,) = bench.refusals(function, grad.double(), x.double(), w.double())
    assert isinstance(refusal, Unsupported) and refusal.code == "dtype"


def test_a_change_of_weights_needs_a_new_binding_and_the_old_one_stays(bench):
    conv = torch.nn.Conv2d(6, 4, 3)
    x = torch.randn(1, 6, 8, 8).contiguous(memory_format=torch.channels_last)
    w, b = conv.weight.detach(), conv.bias.detach()
    built = bench.build(_convolution(2), x, w, b, constants=(1, 2))
    first, before = built.bind([x, w, b]), functional.conv2d(x, w, b)
    w.mul_(2.0)
    second = built.bind([x, w, b])
    torch.testing.assert_close(first.run([x, None, None])[0], before)
    torch.testing.assert_close(second.run([x, None, None])[0], functional.conv2d(x, w, b))
    torch.testing.assert_close(built.compiled.run([x, w, b])[0], functional.conv2d(x, w, b))
