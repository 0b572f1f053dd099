"""Seconds of the roofline: monotone, pure, and sensible at the corners."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import draws

from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import BackendRates, DeviceModel, Estimate, InputRole, OpRate, OpView, TensorMeta
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner import place
from mixbackend.partitioner.roofline import RooflineCostModel, default_rate

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
MODEL = RooflineCostModel(DEVICE, {"fast": FAST, "bare": BARE})


def view_of(function: Any, *inputs: Any) -> OpView:
    _, graph = trace_graph(function, inputs)
    return graph.view(graph.placed_nodes[-1].name)


def meta(*shape: int, stride: tuple[int, ...] | None = None) -> TensorMeta:
    value = torch.empty(shape, device="meta")
    return TensorMeta(shape, stride or value.stride(), torch.float32, torch.device("cpu"))


def beside_traffic(backend: str, view: OpView, arithmetic: float) -> float:
    """Arithmetic hides the traffic of a product."""
    return max(arithmetic - MODEL.traffic(backend, view), 0.0)


def test_a_stated_rate_is_used() -> None:
    view = view_of(aten.mm, torch.randn(100, 200), torch.randn(200, 50))
    assert MODEL.op("fast", view) == Estimate(1e-6 + beside_traffic("fast", view, 2e6 / 8e10), "probed")


def test_the_rate_of_the_dtype_is_used() -> None:
    view = view_of(aten.mm, torch.randn(100, 200).bfloat16(), torch.randn(200, 50).bfloat16())
    assert MODEL.op("fast", view).seconds == 1e-6 + beside_traffic("fast", view, 2e6 / 3e11)
    view = view_of(aten.mm, torch.randn(100, 200).double(), torch.randn(200, 50).double())
    assert MODEL.op("fast", view).seconds == 1e-6 + beside_traffic("fast", view, 2e6 / 8e10)


def test_without_a_rate_the_device_answers() -> None:
    view = view_of(aten.mm, torch.randn(100, 200), torch.randn(200, 50))
    expected = default_rate(DEVICE, "matmul", "float32")
    arithmetic = beside_traffic("bare", view, 2e6 / expected.flops_per_s)
    assert MODEL.op("bare", view) == Estimate(expected.overhead_s + arithmetic, "prior")


def test_depthwise_convolutions_use_their_own_rate() -> None:
    def depthwise(x: Any, w: Any) -> Any:
        return aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 8)

    view = view_of(depthwise, torch.randn(1, 8, 10, 10), torch.randn(8, 1, 3, 3))
    assert MODEL.op("fast", view).seconds == 1e-6 + beside_traffic("fast", view, 2 * 8 * 100 * 9 / 1e9)


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
    assert MODEL.write("fast", small) == 2 * MODEL.write("bare", small)


def test_main_memory_is_the_same_for_those_who_are_slow_in_cache() -> None:
    large = meta(1_000_000)
    assert MODEL.write("fast", large) == MODEL.write("bare", large)
    slow = RooflineCostModel(DEVICE, {"b": BackendRates("b", 0.0, 0.0, memory_scale=30.0)})
    assert slow.write("b", large) == 30 * 4_000_000 / 1e11
    gpu = replace(DEVICE, device="cuda:0 test")
    assert RooflineCostModel(gpu, {"fast": FAST}).write("fast", large) == 2 * 4_000_000 / 1e10


def test_expanded_inputs_are_read_once() -> None:
    expanded = meta(1000, 1000, stride=(0, 1))
    assert MODEL.read("bare", expanded) == 4000 / 1e11
    assert MODEL.write("bare", expanded) == 4_000_000 / 1e10


def test_crossing_and_entry() -> None:
    assert MODEL.crossing("fast", "bare", meta(10)) == pytest.approx(1.5e-6)
    assert (MODEL.entry("fast"), MODEL.entry("bare")) == (1e-5, 0.0)


def test_an_unknown_backend_is_an_error() -> None:
    with pytest.raises(KeyError, match="stranger"):
        MODEL.entry("stranger")


@settings(derandomize=True, deadline=None, max_examples=draws(35, 100))
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


def test_weights_come_from_main_memory_however_small() -> None:
    weight = meta(1000)
    assert MODEL.weight("fast", weight) == MODEL.weight("bare", weight) == 4000 / 1e10
    half = RooflineCostModel(DEVICE, {"b": BackendRates("b", 0.0, 0.0, weight_scale=0.5)})
    assert half.weight("b", weight) == 2000 / 1e10


def test_weights_of_accelerators_are_only_read() -> None:
    """Other tensors are written as well, which takes longer for each byte."""
    gpu, weight = replace(DEVICE, device="cuda:0 test"), meta(1000)
    model = RooflineCostModel(gpu, {"fast": replace(FAST, weight_scale=0.5)})
    assert model.weight("fast", weight) == 0.5 * 4000 / 1e11
    assert model.read("fast", weight) == 2 * 4000 / 1e11


@pytest.mark.parametrize("role", [InputRole.PARAMETER, InputRole.BUFFER, InputRole.CONSTANT, InputRole.ACTIVATION])
def test_plans_read_weights_from_main_memory_through_views_too(role: InputRole) -> None:
    def linear(value: Any, weight: Any) -> Any:
        return aten.mm(value, aten.t(weight))

    inputs = [torch.randn(8, 16), torch.randn(32, 16)]
    _, graph = trace_graph(linear, inputs, roles={1: PlaceholderRole(role)})
    rates = BackendRates("eager", 0.0, 0.0, rates=(("matmul", "float32", OpRate(1e-6, 1e20)),))
    model = RooflineCostModel(DEVICE, {"eager": rates})
    view = next(graph.view(node.name) for node in graph.placed_nodes if "mm" in node.op)
    assert [item.role for item in view.inputs] == [InputRole.ACTIVATION, role]
    bandwidth = 1e11 if role is InputRole.ACTIVATION else 1e10
    moved = 4 * (8 * 16 + 8 * 32) / 1e11 + 4 * 32 * 16 / bandwidth
    assert place(graph, [EagerBackend()], model).estimated_s == pytest.approx(1e-6 + moved)


def test_products_of_few_rows_take_what_their_weights_take() -> None:
    """Of a processor, too, the longer of arithmetic and traffic counts."""
    for rows, expected in ((1, 4_000_000 / 1e10), (4000, 2.0 * 4000 * 1000**2 / 8e10)):
        roles = {1: PlaceholderRole(InputRole.PARAMETER)}
        linear = lambda value, weight: aten.mm(value, aten.t(weight))  # noqa: E731
        _, graph = trace_graph(linear, [torch.randn(rows, 1000), torch.randn(1000, 1000)], roles=roles)
        view = next(graph.view(node.name) for node in graph.placed_nodes if "mm" in node.op)
        assert MODEL.op("fast", view).seconds + MODEL.traffic("fast", view) == pytest.approx(1e-6 + expected, rel=0.02)
