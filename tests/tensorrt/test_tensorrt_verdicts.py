"""What engines run and why not the rest, by release; on fake tensors of a GPU where that matters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from mixbackend.backends.tensorrt.support import Support
from mixbackend.backends.tensorrt.versions import Release
from mixbackend.contracts import (
    DeviceModel,
    InputRole,
    RegionSketch,
    SymbolicSize,
    TensorMeta,
    Unsupported,
)
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_graph

from .conftest import NEWEST, OLDEST, Bench

aten = torch.ops.aten
SMALL = (2, 3, 8, 8)


@cache
def _mode() -> Any:
    return fresh_fake_mode()


def _gpu(*shapes: Any, dtype: torch.dtype = torch.float16, device: str = "cuda") -> list[Any]:
    with _mode():
        return [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]


def _verdicts(release: str, function: Callable[..., Any], inputs: Any, **keywords: Any) -> list[Any]:
    constants = keywords.pop("constants", ())
    roles = {place: PlaceholderRole(InputRole.CONSTANT) for place in constants}
    _, graph = trace_graph(function, inputs, roles=roles, **keywords)
    support = Support(Release.of(release), frozenset({"cuda"}))
    return [support.judge(graph.view(node.name)) for node in graph.placed_nodes]


def _refusal(release: str, function: Callable[..., Any], inputs: Any, **keywords: Any) -> str:
    refused = [item for item in _verdicts(release, function, inputs, **keywords) if isinstance(item, Unsupported)]
    return f"{refused[0].code}: {refused[0].detail}" if refused else ""


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_the_parts_of_networks_are_taken(release) -> None:
    image, weight, bias = _gpu(SMALL, (4, 3, 3, 3), (4,))
    assert not _refusal(
        release,
        lambda x, w, b: torch.relu(aten.convolution(x, w, b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)).mean((2, 3)),
        [image, weight, bias],
        constants=(1, 2),
    )
    rows, square, scale = _gpu((6, 16), (16, 16), (16,))
    assert not _refusal(
        release,
        lambda x, w, s: torch.nn.functional.gelu(torch.nn.functional.layer_norm(x @ w, (16,), s, s)),
        [rows, square, scale],
    )
    heads = _gpu(*[(2, 4, 32, 64)] * 3)
    assert not _refusal(release, torch.nn.functional.scaled_dot_product_attention, heads)
    for attention in (
        lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0],
        lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, None, False)[0],
        lambda q, k, v: aten._scaled_dot_product_cudnn_attention(q, k, v, None, False)[0],
    ):
        assert not _refusal(release, attention, heads)


CASES = {
    "double": (lambda x: x + 1, [((3,), torch.float64)], "dtype: torch.float64"),
    "byte": (lambda x: x + 1, [((3,), torch.uint8)], "dtype: torch.uint8"),
    "short": (lambda x: x + 1, [((3,), torch.int16)], "dtype: torch.int16"),
    "rank": (lambda x: x + 1, [((1,) * 8, torch.float32)], "rank: rank 8, needed at most 7"),
    "empty": (lambda x: x + 1, [((0, 3), torch.float32)], "layout:"),
    "unknown": (torch.digamma, [((3,), torch.float32)], "unknown-op: no rule for aten.digamma"),
    "bits": (lambda x: x & 3, [((3,), torch.int32)], "unknown-op: aten.bitwise_and.Scalar: operator set 17 has no"),
    "random": (lambda x: torch.rand_like(x), [((3,), torch.float32)], "random"),
    "pooled": (lambda x: aten.avg_pool2d(x.to(torch.float64), [2, 2]), [(SMALL, torch.float32)], "dtype"),
    "shared_heads": (
        lambda q, k: aten._scaled_dot_product_flash_attention(q, k, k)[0],
        [((1, 8, 16, 64), torch.float16), ((1, 2, 16, 64), torch.float16)],
        "argument",
    ),
}


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", CASES)
def test_what_no_release_takes(release, name) -> None:
    function, described, wanted = CASES[name]
    inputs = [_gpu(shape, dtype=dtype)[0] for shape, dtype in described]
    assert _refusal(release, function, inputs).startswith(wanted)


def test_what_came_with_later_releases() -> None:
    halves = _gpu((3, 4), dtype=torch.bfloat16)
    assert "bfloat16" in _refusal(OLDEST, torch.relu, halves) and not _refusal(NEWEST, torch.relu, halves)
    counts = _gpu((3, 4), dtype=torch.int64)
    assert "computes int64 as int32" in _refusal(OLDEST, lambda x: x + 1, counts)
    assert not _refusal(NEWEST, lambda x: x + 1, counts)
    table, rows = _gpu((9, 4))[0], _gpu((5,), dtype=torch.int64)[0]
    for release in (OLDEST, NEWEST):
        assert not _refusal(release, lambda t, r: torch.nn.functional.embedding(r, t), [table, rows])
    whole = _gpu((3, 4), dtype=torch.int32)
    assert "no kernel" in _refusal(OLDEST, lambda x: x.amax(1), whole) and not _refusal(
        NEWEST, lambda x: x.amax(1), whole
    )
    scattered = [
        *_gpu((6, 4), dtype=torch.float32),
        *_gpu((6, 4), dtype=torch.int64),
        *_gpu((6, 4), dtype=torch.float32),
    ]
    assert _refusal(OLDEST, lambda x, i, y: aten.scatter_add(x, 0, i, y), scattered).startswith("dtype")
    assert not _refusal(NEWEST, lambda x, i, y: aten.scatter_add(x, 0, i, y), scattered)


def test_weights_that_change_at_each_call_are_left_to_others() -> None:
    image, weight = _gpu(SMALL, (4, 3, 3, 3))
    convolve = lambda x, w: aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)  # noqa: E731
    assert "is no constant" in _refusal(NEWEST, convolve, [image, weight])
    norms = _gpu(SMALL, (3,), (3,), (3,), (3,), dtype=torch.float32)
    norm = lambda x, w, b, m, v: aten._native_batch_norm_legit_no_training(x, w, b, m, v, 0.1, 1e-5)[0]  # noqa: E731
    assert "is no constant" in _refusal(NEWEST, norm, norms)
    assert not _refusal(NEWEST, norm, norms, constants=(1, 2, 3, 4))


def test_only_inference_on_the_first_gpu() -> None:
    assert _refusal(NEWEST, torch.relu, _gpu((3,)), phase="forward").startswith("phase: engines serve inference")
    assert _refusal(NEWEST, torch.relu, _gpu((3,), device="cuda:1")).startswith("device")
    assert _refusal(NEWEST, torch.relu, [torch.zeros(3)]).startswith("device")


def test_sizes_that_depend_on_values_are_refused() -> None:
    def chosen(x: Any) -> Any:
        return torch.relu(x)

    _, graph = trace_graph(chosen, [torch.randn(4, 6)], dynamic=True)
    view = graph.view(next(iter(graph.placed_nodes)).name)
    size = SymbolicSize(view.input_tensors[0].shape[0].expression, hint=None)  # type: ignore[union-attr]
    meta = TensorMeta((size, 6), (6, 1), torch.float32, torch.device("cuda"))
    unknown = replace(view, inputs=(replace(view.inputs[0], meta=meta),), node=replace(view.node, outputs=(meta,)))
    verdict = Support(Release.of(NEWEST), frozenset({"cuda"})).judge(unknown)
    assert isinstance(verdict, Unsupported) and verdict.code == "data-dependent"


def test_regions_are_declined_where_no_tensor_shows_a_size(stand_in) -> None:
    stand_in()
    bench = Bench()
    region = bench.region(lambda x, y: (x @ y).reshape(-1, 2), [torch.randn(4, 6), torch.randn(6, 8)], dynamic=True)
    metas = tuple(item.meta for item in region.inputs if isinstance(item.meta, TensorMeta))
    outputs = tuple(item.meta for item in region.outputs)
    assert bench.backend.decline(RegionSketch(region.views, metas, outputs, 1e-3)) is None
    hidden = bench.backend.decline(RegionSketch(region.views, (), outputs, 1e-3))
    numbers = [item for view in region.views for item in view.inputs if isinstance(item.meta, SymbolicSize)]
    assert (hidden is not None) == bool(numbers)


def test_priors_and_conditions_speak_of_heavy_inference_on_gpus(stand_in) -> None:
    stand_in()
    backend = Bench().backend
    gpu = DeviceModel("cuda:0 x", (("float32", 5e13), ("float16", 8e14)), 4e12, 3e7, 8e12, 5e-6, 1)
    prior = backend.prior(gpu)
    assert prior is not None and prior.host is not None and prior.entry_s == 0.0
    narrow, wide = (prior.rate("matmul", dtype) for dtype in ("float16", "float32"))
    assert narrow is not None and wide is not None and narrow.flops_per_s > 10 * wide.flops_per_s
    plain, last = (prior.rate(f"convolution{layout}", "float16") for layout in ("", "/channels_last"))
    assert plain == last, "inside of an engine images lie as its kernels want them"
    assert backend.prior(DeviceModel("cpu", (("float32", 1e11),), 2e10, 1e7, 1e11, 3e-6, 1)) is None
    conditions = backend.conditions()
    assert conditions.phases == {"inference"} and conditions.minimum_seconds > 0
    assert conditions.must_contain == {"matmul", "convolution", "attention"}
    probed = {probe.op_class for probe in backend.probes(gpu)}
    assert probed == {"matmul", "convolution", "attention", "normalization", "pointwise"}
