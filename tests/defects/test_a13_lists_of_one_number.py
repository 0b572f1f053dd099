"""A13: where torch takes one number for all dimensions, or none, every lowering sees one for each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from region_arguments import arguments

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.lower.judging import judge_op
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.backends.onnxruntime.backend import OnnxRuntimeBackend
from mixbackend.contracts import Supported
from mixbackend.execute.verify import eager_result
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten
IMAGE = (torch.arange(2 * 4 * 9 * 9) % 37).float().reshape(2, 4, 9, 9) / 8
VOLUME = (torch.arange(2 * 3 * 7 * 7 * 7) % 41).float().reshape(2, 3, 7, 7, 7) / 8
DEPTHWISE, LINE = torch.ones(4, 1, 3, 3) / 4, torch.ones(4, 1, 3)

CASES: dict[str, tuple[Any, ...]] = {
    "avg_pool2d": (lambda x: aten.avg_pool2d(x, [3], [2], [1]), IMAGE),
    "avg_pool2d by its size": (lambda x: aten.avg_pool2d(x, [3]), IMAGE),
    "avg_pool2d by its sizes": (lambda x: aten.avg_pool2d(x, [3, 2], [], [1]), IMAGE),
    "avg_pool3d": (lambda x: aten.avg_pool3d(x, [3], [2], [1]), VOLUME),
    "max_pool2d": (lambda x: aten.max_pool2d_with_indices(x, [3], [2], [1], [1]), IMAGE),
    "max_pool2d by its size": (lambda x: aten.max_pool2d_with_indices(x, [2], [], [0], [2]), IMAGE),
    "max_pool3d": (lambda x: aten.max_pool3d_with_indices(x, [3], [2], [1], [1]), VOLUME),
    "avg_pool2d_backward": (
        lambda x: aten.avg_pool2d_backward(aten.avg_pool2d(x, [3], [2], [1]), x, [3], [2], [1], False, True, None),
        IMAGE,
    ),
    "avg_pool3d_backward": (
        lambda x: aten.avg_pool3d_backward(aten.avg_pool3d(x, [2]), x, [2], [], [0], False, True, None),
        VOLUME,
    ),
    "max_pool2d_backward": (
        lambda x: aten.max_pool2d_with_indices_backward(
            aten.max_pool2d_with_indices(x, [3], [2], [1])[0],
            x,
            [3],
            [2],
            [1],
            [1],
            False,
            aten.max_pool2d_with_indices(x, [3], [2], [1])[1],
        ),
        IMAGE,
    ),
    "convolution": (lambda x, w: aten.convolution(x, w, None, [2], [1], [1], False, [0], 4), IMAGE, DEPTHWISE),
    "convolution in 1 dimension": (
        lambda x, w: aten.convolution(x[:, :, 0], w, None, [2], [1], [1], False, [0], 4),
        IMAGE,
        LINE,
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_generated_code_means_all_dimensions(name: str) -> None:
    function, *inputs = CASES[name]
    region = trace_region(function, inputs)
    assert all(judge_op(view) == Supported() for view in region.views), [judge_op(view) for view in region.views]
    given = arguments(region, inputs)
    expected = eager_result(region, given)
    for results in (interpret_stages(lower_region(region), given), CodegenBackend().compile(region).run(given)):
        for result, wanted in zip(results, expected, strict=True):
            torch.testing.assert_close(result, wanted)


@pytest.mark.parametrize("name", [name for name in CASES if name[:8] in ("avg_pool", "max_pool", "convolut")])
def test_models_of_onnx_do(name: str) -> None:
    backend = OnnxRuntimeBackend()
    if not backend.availability().available:
        pytest.skip("ONNX Runtime is not installed")
    function, *inputs = CASES[name]
    region = trace_region(function, inputs)
    if not all(isinstance(backend.judge(view), Supported) for view in region.views):
        pytest.skip("ONNX Runtime does not take this op")
    given = arguments(region, inputs)
    for result, wanted in zip(backend.compile(region).run(given), eager_result(region, given), strict=True):
        torch.testing.assert_close(result, wanted)


def test_every_list_of_known_length_is_whole() -> None:
    """Whatever op: what torch's schema gives a length has that many numbers, and windows know how far they move."""
    for function, *inputs in CASES.values():
        for view in trace_region(function, inputs).views:
            if not view.op.startswith("aten."):
                continue
            packet, overload = view.op.removeprefix("aten.").split(".")
            lists = dict(view.node.arguments)
            for argument in getattr(getattr(aten, packet), overload)._schema.arguments:
                if argument.N is not None and argument.N > 1:
                    assert len(lists[argument.name]) == argument.N, f"{argument.name} of {view.op}"
                if packet == "convolution" and argument.name in ("stride", "padding", "dilation", "output_padding"):
                    assert len(lists[argument.name]) == len(view.tensor("weight").shape) - 2
