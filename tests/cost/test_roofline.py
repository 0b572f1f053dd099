"""Seconds of the roofline: monotone, pure, and sensible at the corners."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mixbackend.contracts import BackendRates, DeviceModel, Estimate, InputRole, OpRate, OpView, TensorMeta
from mixbackend.partitioner.roofline import RooflineCostModel, default_rate
from mixbackend.runtime.describe import PlaceholderRole
from mixbackend.runtime.trace import trace_graph

aten = torch.ops.aten
DEVICE = DeviceModel("cpu test", (("float32", 1e11), ("bfloat16", 4e11)), 1e10, 1e6, 1e11, 2e-6, 2)
FAST = BackendRates(
    "fast",
    entry_s=1e-5,
    crossing_s=1e-6,
    memory_scale=2.0,
    rates=(
        ("matmul", "float32", OpRate(1e-6, 8e10, "probed")),
        ("matmul", "bfloat16", OpRate(1e-6, 3e11, "probed")),
        ("convolution/grouped", "float32", OpRate(1e-6, 1e9, "probed")),
    ),
    provenance="probed",
)
BARE = BackendRates("bare", entry_s=0.0, crossing_s=5e-7)
MODEL = RooflineCostModel(DEVICE, {"fast": FAST, "bare": BARE}, {("fast", "key"): Estimate(0.5, "measured")})


def view_of(function: Any, *inputs: Any) -> OpView:
    _, graph = trace_graph(function, inputs)
    return graph.view(graph.placed_nodes[-1].name)


def meta(*shape: int, stride: tuple[int, ...] | None = None) -> TensorMeta:
    value = torch.empty(shape, device="meta")
    return TensorMeta(shape, stride or value.stride(), torch.float32, torch.device("cpu"))


def test_a_stated_rate_is_used() -> None:
    view = view_of(aten.mm, torch.randn(100, 200), torch.randn(200, 50))
    assert MODEL.op("fast", view) == Estimate(1e-6 + 2e6 / 8e10, "probed")


def test_the_rate_of_the_dtype_is_used() -> None:
    view = view_of(aten.mm, torch.randn(100, 200).bfloat16(), torch.randn(200, 50).bfloat16())
    assert MODEL.op("fast", view).seconds == 1e-6 + 2e6 / 3e11
    view = view_of(aten.mm, torch.randn(100, 200).double(), torch.randn(200, 50).double())
    assert MODEL.op("fast", view).seconds == 1e-6 + 2e6 / 8e10


def test_without_a_rate_the_device_answers() -> None:
    view = view_of(aten.mm, torch.randn(100, 200), torch.randn(200, 50))
    expected = default_rate(DEVICE, "matmul", "float32")
    assert MODEL.op("bare", view) == Estimate(expected.overhead_s + 2e6 / expected.flops_per_s, "prior")


def test_depthwise_convolutions_use_their_own_rate() -> None:
    def depthwise(x: Any, w: Any) -> Any:
        return aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 8)

    view = view_of(depthwise, torch.randn(1, 8, 10, 10), torch.randn(8, 1, 3, 3))
    assert MODEL.op("fast", view).seconds == 1e-6 + 2 * 8 * 100 * 9 / 1e9


def test_channels_last_convolutions_copy_row_major_weights_unless_bound() -> None:
    def convolve(x: Any, w: Any) -> Any:
        return aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)

    def seconds(image: torch.Tensor, weight: torch.Tensor, constant: bool = False) -> float:
        roles = {1: PlaceholderRole(InputRole.CONSTANT if constant else InputRole.PARAMETER)}
        _, graph = trace_graph(convolve, [image, weight], roles=roles)
        return model.op("b", graph.view(graph.placed_nodes[-1].name)).seconds

    rows = ("convolution", "convolution/channels_last", "convolution/channels_last/constant")
    rates = BackendRates("b", 0.0, 0.0, rates=tuple((row, "float32", OpRate(0.0, 1e9)) for row in rows))
    model = RooflineCostModel(DEVICE, {"b": rates})
    image, weight = torch.randn(1, 8, 5, 5), torch.randn(4, 8, 3, 3)
    last, last_weight = (value.contiguous(memory_format=torch.channels_last) for value in (image, weight))
    plain, copied = seconds(image, weight), 2 * weight.nbytes / 1e11
    copied += weight.numel() / default_rate(DEVICE, "copy", "float32").flops_per_s
    assert seconds(last, weight) == pytest.approx(plain + copied)
    assert seconds(last, last_weight) == plain
    assert seconds(last, weight, constant=True) == plain
    point, deep = torch.randn(4, 8, 1, 1), torch.randn(4, 8, 5, 5)
    assert seconds(last, point) == seconds(image, point)
    assert seconds(last, deep) > seconds(image, deep)


def test_views_are_free_and_factories_cost_their_overhead() -> None:
    assert MODEL.op("bare", view_of(lambda x: aten.transpose(x, 0, 1), torch.randn(3, 4))).seconds == 0.0
    assert MODEL.op("bare", view_of(lambda x: aten.full([3], 1.0), torch.randn(1))).seconds == DEVICE.launch_s


def test_traffic_follows_bandwidth_and_memory_scale() -> None:
    small, large = meta(1000), meta(1_000_000)
    assert MODEL.read("bare", small) == 4000 / 1e11
    assert MODEL.read("bare", large) == 4_000_000 / 1e10
    assert MODEL.write("fast", large) == 2 * MODEL.write("bare", large)


def test_expanded_inputs_are_read_once() -> None:
    expanded = meta(1000, 1000, stride=(0, 1))
    assert MODEL.read("bare", expanded) == 4000 / 1e11
    assert MODEL.write("bare", expanded) == 4_000_000 / 1e10


def test_crossing_and_entry() -> None:
    assert MODEL.crossing("fast", "bare", meta(10)) == pytest.approx(1.5e-6)
    assert (MODEL.entry("fast"), MODEL.entry("bare")) == (1e-5, 0.0)


def test_measured_regions_come_back() -> None:
    assert MODEL.region("fast", "key") == Estimate(0.5, "measured")
    assert MODEL.region("bare", "key") is None
    asked = RooflineCostModel(DEVICE, {}, lambda backend, key: Estimate(1.0, "measured") if key == "k" else None)
    assert asked.region("any", "k") is not None
    assert asked.region("any", "other") is None


def test_an_unknown_backend_is_an_error() -> None:
    with pytest.raises(KeyError, match="stranger"):
        MODEL.entry("stranger")


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 2000), min_size=1, max_size=3), st.integers(0, 2))
def test_more_data_never_costs_less(shape: list[int], axis: int) -> None:
    larger = list(shape)
    larger[axis % len(shape)] += 1
    for backend in ("fast", "bare"):
        assert MODEL.read(backend, meta(*shape)) <= MODEL.read(backend, meta(*larger))
        assert MODEL.write(backend, meta(*shape)) > 0


def test_equal_questions_have_equal_answers() -> None:
    view = view_of(aten.gelu, torch.randn(64, 64))
    twin = view_of(aten.gelu, torch.randn(64, 64))
    assert view == twin
    assert MODEL.op("bare", view) == MODEL.op("bare", twin)


def test_known_weights_are_read_at_the_speed_of_the_device() -> None:
    weight = meta(1000, 1000)
    assert MODEL.read("fast", weight) == pytest.approx(2.0 * MODEL.constant("fast", weight))
    assert MODEL.constant("fast", weight) == MODEL.constant("bare", weight)
