"""Resizing and its gradients against eager; sources of the nearest element to the bit."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.ir.stages import Map, Scatter
from mixbackend.backends.codegen.lower.judging import judge_op
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.contracts import Unsupported
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten
FLOATS = [torch.bfloat16, torch.float16, torch.float64]
NEAREST = ["nearest", "nearest-exact"]
SIZES = [(8, 10), (4, 5), (16, 20), (24, 15), (7, 11), (1, 1), (3, 2), (40, 50)]


def _values(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return (torch.randn(sizes, generator=generator) * 3).to(dtype)


def _cases(*dtypes: torch.dtype) -> list:
    """Every size in float32, one of them in every type."""
    return [*((size, torch.float32) for size in SIZES), *(((7, 11), dtype) for dtype in dtypes)]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("mode", NEAREST)
@pytest.mark.parametrize(("size", "dtype"), _cases(*FLOATS, torch.uint8))
def test_nearest(check_lowering, mode, size, dtype):
    check_lowering(lambda x: functional.interpolate(x, size=size, mode=mode), [_values(2, 3, 8, 10, dtype=dtype)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["upsample_nearest", "_upsample_nearest_exact"])
@pytest.mark.parametrize(("rank", "dtype"), [(1, torch.float32), (2, torch.float64), (3, torch.float32)])
def test_sources_of_the_nearest_element_are_eagers(name, rank, dtype):
    """Rounding decides here and there: every source is the same, or the sizes are refused; few are."""
    operator, refused, total = getattr(aten, f"{name}{rank}d"), 0, 0
    for source in (2, 7, 28):
        x = torch.arange(source, dtype=dtype).expand(1, 4, *(2,) * (rank - 1), source).contiguous()
        for result in (1, 6, 14, 29, 41):
            for scale in (None, result / source, (result + 0.37) / source):
                resize = lambda x: operator(x, [*(2,) * (rank - 1), result], *(None,) * (rank - 1), scale)  # noqa: B023, E731
                region, total = trace_region(resize, [x]), total + 1
                if isinstance(judge_op(region.views[0]), Unsupported):
                    refused += 1
                    continue
                (actual,) = interpret_stages(lower_region(region), [x])
                assert torch.equal(actual, resize(x)), (source, result, scale)
    assert refused <= total // 10


def test_sizes_on_which_eagers_kernels_disagree_are_refused():
    (view,) = trace_region(lambda x: aten._upsample_nearest_exact1d(x, [41]), [_values(1, 1, 2)]).views
    verdict = judge_op(view)
    assert isinstance(verdict, Unsupported)
    assert verdict.code == "argument"


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("mode", NEAREST)
def test_nearest_in_other_dimensions_and_layouts(check_lowering, mode, rank):
    x = _values(2, 3, *(4, 5, 6)[:rank])
    check_lowering(lambda x: functional.interpolate(x, scale_factor=2, mode=mode), [x])
    check_lowering(lambda x: functional.interpolate(x, scale_factor=1.4, mode=mode), [x.transpose(0, 1)])


@pytest.mark.sampled(9)
@pytest.mark.parametrize("operator", ["upsample_nearest2d", "_upsample_nearest_exact2d"])
@pytest.mark.parametrize(("size", "dtype"), _cases(*FLOATS))
def test_gradient_of_nearest(check_lowering, operator, size, dtype):
    backward = getattr(aten, f"{operator}_backward")
    check_lowering(lambda g: backward(g, size, [2, 3, 8, 10]), [_values(2, 3, *size, dtype=dtype)])


def test_gradient_of_repetition_needs_no_scatter():
    backward = aten.upsample_nearest2d_backward
    graph = lower_region(trace_region(lambda g: backward(g, [8, 6], [1, 2, 4, 3]), [_values(1, 2, 8, 6)]))
    assert all(isinstance(stage, Map) for stage in graph.stages)
    graph = lower_region(trace_region(lambda g: backward(g, [9, 6], [1, 2, 4, 3]), [_values(1, 2, 9, 6)]))
    assert any(isinstance(stage, Scatter) for stage in graph.stages)


@pytest.mark.sampled(11)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize(("size", "dtype"), _cases(*FLOATS))
def test_interpolation(check_lowering, mode, corners, size, dtype):
    resize = lambda x: functional.interpolate(x, size=size, mode=mode, align_corners=corners)  # noqa: E731
    check_lowering(resize, [_values(1, 3, 8, 10, dtype=dtype)])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("scale", [2.0, 1.7, 0.6])
def test_interpolation_by_a_factor(check_lowering, mode, corners, scale):
    resize = lambda x: functional.interpolate(x, scale_factor=scale, mode=mode, align_corners=corners)  # noqa: E731
    check_lowering(resize, [_values(2, 3, 9, 10)])
    check_lowering(resize, [_values(2, 4, 9, 10).contiguous(memory_format=torch.channels_last)])


@pytest.mark.parametrize("corners", [False, True])
def test_interpolation_in_other_dimensions(check_lowering, corners):
    x, y = _values(2, 3, 9), _values(1, 2, 4, 5, 6)
    check_lowering(lambda x: functional.interpolate(x, size=13, mode="linear", align_corners=corners), [x])
    check_lowering(lambda x: functional.interpolate(x, size=(6, 3, 9), mode="trilinear", align_corners=corners), [y])
    backward = aten.upsample_trilinear3d_backward
    check_lowering(lambda g: backward(g, [6, 3, 9], [1, 2, 4, 5, 6], corners), [_values(1, 2, 6, 3, 9)])
    check_lowering(lambda g: aten.upsample_linear1d_backward(g, [13], [2, 3, 9], corners), [_values(2, 3, 13)])


@pytest.mark.sampled(11)
@pytest.mark.parametrize("operator", ["upsample_bilinear2d", "upsample_bicubic2d"])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize(("size", "dtype"), _cases(*FLOATS))
def test_gradient_of_interpolation(check_lowering, operator, corners, size, dtype):
    backward = getattr(aten, f"{operator}_backward")
    check_lowering(lambda g: backward(g, size, [1, 3, 8, 10], corners), [_values(1, 3, *size, dtype=dtype)])


def test_interpolation_keeps_eagers_rule_for_equal_sizes(check_lowering):
    x = _values(1, 2, 3, 4)
    check_lowering(lambda x: aten.upsample_bilinear2d(x, [3, 4], False, 1.2, 0.9), [x])
    check_lowering(lambda x: aten.upsample_bicubic2d(x, [3, 4], False, 1.2, 0.9), [x])


def test_interpolation_of_integers_is_refused():
    x = torch.ones(1, 1, 4, 4, dtype=torch.uint8)
    (view,) = trace_region(lambda x: functional.interpolate(x, size=(8, 8), mode="bilinear"), [x]).views
    verdict = judge_op(view)
    assert isinstance(verdict, Unsupported)
    assert verdict.code == "dtype"
