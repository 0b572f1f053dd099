"""Products, convolutions and attention take the longer of arithmetic and traffic; loops add both up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mixbackend.contracts import BackendRates, DeviceModel, HostRates, InputRole, OpRate, OpView
from mixbackend.contracts.rate_rows import rate_row
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner.async_cost import weighed
from mixbackend.partitioner.roofline import RooflineCostModel

aten = torch.ops.aten
GPU = DeviceModel("cuda:0 test", (("float32", 5e13), ("float16", 8e14)), 4e12, 3e7, 4e12, 6e-6, 1, "probed")
PROCESSOR = replace(GPU, device="cpu test")
RATES = BackendRates(
    "b",
    0.0,
    0.0,
    rates=(
        ("matmul", "float16", OpRate(2e-6, 4e14, "probed")),
        ("matmul/deep", "float16", OpRate(2e-6, 1e14, "probed", least_s=5e-6)),
        ("pointwise", "float16", OpRate(1e-6, 1e13, "probed")),
    ),
    host=HostRates(0.0, 0.0, 5e-6),
)


def view_of(
    function: Callable[..., Any], *shapes: tuple[int, ...], device: str = "cuda", known: bool = False
) -> OpView:
    with fresh_fake_mode():
        values = [torch.empty(shape, dtype=torch.float16, device=device) for shape in shapes]
    roles = {1: PlaceholderRole(InputRole.CONSTANT if known else InputRole.PARAMETER)} if len(shapes) > 1 else None
    _, graph = trace_graph(function, values, roles=roles)
    return next(view for node in graph.placed_nodes if (view := graph.view(node.name)).op_class != "view")


def materialised(costs: RooflineCostModel, view: OpView) -> float:
    """An op of which nothing is fused."""
    reads = sum(
        costs.weight("b", item.meta) if item.role.is_weight else costs.read("b", item.meta) for item in view.inputs
    )
    return costs.op("b", view).seconds + reads + sum(costs.write("b", meta) for meta in view.output_tensors)


@pytest.mark.parametrize("known", [False, True])
def test_a_large_product_takes_its_arithmetic(known: bool) -> None:
    view = view_of(aten.mm, (4096, 4096), (4096, 4096), known=known)
    costs = RooflineCostModel(GPU, {"b": replace(RATES, weight_scale=0.5)})
    assert materialised(costs, view) == pytest.approx(2e-6 + 2 * 4096**3 / 4e14)


def test_a_flat_product_takes_its_traffic() -> None:
    view = view_of(aten.mm, (100_000, 16), (16, 1000))
    costs = RooflineCostModel(GPU, {"b": RATES})
    moved = 2 * (100_000 * 16 + 16 * 1000 + 100_000 * 1000)
    assert costs.op("b", view).seconds == 2e-6
    assert materialised(costs, view) == pytest.approx(2e-6 + moved / 4e12)


def test_no_product_takes_less_than_the_least() -> None:
    view = view_of(aten.mm, (16, 512), (512, 16))
    assert rate_row(view) == "matmul/deep"
    assert materialised(RooflineCostModel(GPU, {"b": RATES}), view) == pytest.approx(2e-6 + 5e-6)


def test_what_is_read_twice_is_moved_once() -> None:
    view = view_of(lambda x: aten.mm(x, x), (64, 64))
    costs = RooflineCostModel(GPU, {"b": RATES})
    assert costs.traffic("b", view) == pytest.approx(2 * 64 * 64 * 2 / 4e12)


@pytest.mark.parametrize("device", [GPU, PROCESSOR])
def test_loops_add_both_up(device: DeviceModel) -> None:
    loop = view_of(aten.relu, (4096, 4096), device=device.place.type)
    assert RooflineCostModel(device, {"b": RATES}).op("b", loop).seconds == pytest.approx(1e-6 + 4096**2 / 1e13)


def test_processors_hide_traffic_too() -> None:
    costs = RooflineCostModel(PROCESSOR, {"b": replace(RATES, host=None)})
    product = view_of(aten.mm, (4096, 4096), (4096, 4096), device="cpu")
    assert materialised(costs, product) == pytest.approx(2e-6 + 2.0 * 4096**3 / 4e14)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_shares_of_the_processor_leave_the_longer_of_both(share: float) -> None:
    costs = weighed(RooflineCostModel(GPU, {"b": RATES}), share)
    for shapes in (((4096, 4096), (4096, 4096)), ((16, 512), (512, 16))):
        view = view_of(aten.mm, *shapes)
        whole = materialised(RooflineCostModel(GPU, {"b": RATES}), view) - 2e-6
        expected = (1.0 - share) * (2e-6 + whole) + share * 5e-6
        assert materialised(costs, view) == pytest.approx(expected)


def _vocabulary(phase: str, *rates: tuple[str, str, OpRate]) -> float:
    """Seconds of a product with 1001 columns beyond one with 1008."""
    costs = RooflineCostModel(GPU, {"b": replace(RATES, rates=(*RATES.rates, *rates))})
    odd, even = (replace(view_of(aten.mm, (512, 512), (512, columns)), phase=phase) for columns in (1001, 1008))
    assert rate_row(odd) == "matmul/unaligned" and rate_row(even) == "matmul"
    return materialised(costs, odd) - materialised(costs, even)


def test_who_pads_a_product_copies_its_matrices_in_inference() -> None:
    copied = 2 * (512 * 1001 + 512 * 1001) * 2 / 4e12
    assert _vocabulary("inference") == pytest.approx(copied, rel=0.1)
    # In training the loops around it read and write rows with gaps.
    assert abs(_vocabulary("forward")) < 0.1 * copied


def test_who_states_a_rate_for_unaligned_products_does_not_pad() -> None:
    stated = ("matmul/unaligned", "float16", OpRate(2e-6, 4e14, "probed"))
    assert abs(_vocabulary("inference", stated)) < 1e-7


# --- rows of accelerators --------------------------------------------------------------------------------------------


def convolve(image: Any, weight: Any) -> Any:
    return aten.convolution(image, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)


@pytest.mark.parametrize(
    ("function", "shapes", "row"),
    [
        (aten.mm, ((6304, 768), (768, 3072)), "matmul"),
        (lambda x, y: aten.mm(aten.t(x), y), ((6304, 768), (6304, 3072)), "matmul/deep"),
        (aten.bmm, ((4, 8, 512), (4, 512, 8)), "matmul/batched"),
        (aten.mm, ((0, 8), (8, 0)), "matmul/deep"),
        (lambda x, y: aten.mm(x, aten.t(y)), ((4096, 768), (50257, 768)), "matmul/unaligned"),
        (lambda x, y: aten.mm(aten.t(x), y), ((6304, 768), (6304, 100)), "matmul/unaligned/deep"),
        (aten.mm, ((4096, 767), (767, 768)), "matmul/unaligned"),
        (aten.mm, ((1, 767), (767, 768)), "matmul/one_row"),
    ],
)
def test_long_sums_and_odd_rows_are_told(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], row: str
) -> None:
    assert rate_row(view_of(function, *shapes)) == row
    on_processor = ("matmul", "matmul/turned", "matmul/batched", "matmul/one_row")
    assert rate_row(view_of(function, *shapes, device="cpu")) in on_processor


def test_convolutions_of_one_point_have_a_row() -> None:
    def last(image: Any, weight: Any) -> Any:
        return convolve(aten.permute(image, [0, 3, 1, 2]), weight)

    shapes = ((2, 14, 14, 64), (32, 64, 1, 1))
    assert rate_row(view_of(last, *shapes)) == "convolution/channels_last/point"
    assert rate_row(view_of(last, *shapes, known=True)) == "convolution/channels_last/point/constant"
    assert rate_row(view_of(last, (2, 14, 14, 64), (32, 64, 3, 3))) == "convolution/channels_last"
    assert rate_row(view_of(convolve, (2, 64, 14, 14), (32, 64, 1, 1))) == "convolution"
    assert rate_row(view_of(last, *shapes, device="cpu")) == "convolution/channels_last"
