"""Processor and device beside one another: a plan takes the larger of both sums, and the planner is led to the best."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mixbackend.contracts import BackendRates, DeviceModel, HostRates, OpRate, Plan
from mixbackend.contracts.gpu_rates import LIBRARY_SHARES, LOOP_SHARES, ROWS, gpu_rate, gpu_rates, library_calls
from mixbackend.contracts.rate_rows import is_rate_row
from mixbackend.partitioner.async_cost import EVEN, HEAVY, LIGHT, Sides, balance, weighed
from mixbackend.partitioner.roofline import RooflineCostModel, default_rate

PEAKS = (("float32", 5e13), ("float16", 8e14))
GPU = DeviceModel("cuda:0 synthetic", PEAKS, 4e12, 3e7, 8e12, 6e-6, 1, "probed")


@dataclass(frozen=True)
class Costs:
    """A cost model that is known by its share alone."""

    share: float


def search(*plans: Sides) -> tuple[float, int]:
    """The share for a graph that has these plans, and how many placements it took."""
    placed: list[float] = []

    def seconds(number: int, share: float) -> float:
        return share * plans[number].host_s + (1.0 - share) * plans[number].device_s

    def place(costs: Costs) -> Plan:
        placed.append(costs.share)
        best = min(range(len(plans)), key=lambda number: seconds(number, costs.share))
        return Plan(str(best), "inference", False, (), estimated_s=seconds(best, costs.share))

    def reprice(plan: Plan, costs: Costs) -> float:
        return seconds(int(plan.graph_id), costs.share)

    share = balance(place, reprice, Costs)  # type: ignore[arg-type]
    return share, len(placed)


QUICK_TO_QUEUE, QUICK_TO_RUN, BETWEEN = Sides(1.0, 10.0), Sides(10.0, 1.0), Sides(4.0, 4.0)


@pytest.mark.parametrize(
    ("plans", "expected"),
    [
        ((Sides(1.0, 9.0), Sides(5.0, 7.0)), (LIGHT, 1)),
        ((Sides(9.0, 1.0), Sides(7.0, 2.0)), (HEAVY, 2)),
        ((QUICK_TO_QUEUE, QUICK_TO_RUN, BETWEEN), (EVEN, 3)),
        # Nothing lies between: whichever is less bad.
        ((Sides(1.0, 10.0), Sides(8.0, 1.0)), (LIGHT, 3)),
    ],
)
def test_the_side_that_waits_is_found(plans: tuple[Sides, ...], expected: tuple[float, int]) -> None:
    assert search(*plans) == expected


def test_a_weighed_sum_is_never_more_than_the_larger_side() -> None:
    host = HostRates(5e-6, 1e-7, 6e-6, (("matmul", 9e-6),))
    rates = BackendRates("b", 1e-6, 0.0, 1.1, (("matmul", "float16", OpRate(2e-6, 4e14)),), host=host)
    costs = RooflineCostModel(GPU, {"b": rates})
    light, heavy = weighed(costs, LIGHT), weighed(costs, HEAVY)
    assert light.entry("b") == pytest.approx(0.9 * 1e-6 + 0.1 * 5e-6)
    assert heavy.entry("b") == pytest.approx(0.1 * 1e-6 + 0.9 * 5e-6)
    product = heavy.rate("b", "matmul/constant", "float16")
    assert product.overhead_s == pytest.approx(0.1 * 2e-6 + 0.9 * 9e-6)
    assert 1.0 / product.flops_per_s == pytest.approx(0.1 / 4e14)
    # What a backend does not state costs the processor something all the same.
    assert heavy.rate("b", "softmax", "float16").overhead_s > 0.9 * 6e-6


# --- documented figures ----------------------------------------------------------------------------------------------


def test_rows_are_rows() -> None:
    assert all(map(is_rate_row, ROWS))
    assert set(dict(library_calls(GPU))) == {"matmul", "convolution", "attention"}


def test_products_have_the_peak_of_their_type_and_loops_that_of_float32() -> None:
    half, single = gpu_rate(GPU, "matmul", "float16"), gpu_rate(GPU, "matmul", "float32")
    assert half.flops_per_s == 16 * single.flops_per_s == LIBRARY_SHARES["matmul"] * 8e14
    for dtype in ("float16", "float32"):
        assert gpu_rate(GPU, "pointwise", dtype).flops_per_s == LOOP_SHARES["pointwise"] * 5e13
    assert gpu_rate(GPU, "convolution/channels_last/constant", "float16") == gpu_rate(
        GPU, "convolution/channels_last", "float16"
    )
    assert default_rate(GPU, "softmax", "float16") == gpu_rate(GPU, "softmax", "float16")


def test_a_prior_has_both_sides() -> None:
    host = HostRates(1e-6, 0.0, 5e-6)
    prior = gpu_rates("b", GPU, ("matmul", "pointwise"), host, {"pointwise": 0.0}, share=0.5)
    assert (prior.entry_s, prior.host) == (0.0, host)
    assert prior.rate("pointwise", "float16").overhead_s == 0.0
    assert prior.rate("matmul", "float16").flops_per_s == 0.5 * gpu_rate(GPU, "matmul", "float16").flops_per_s


def test_copies_between_devices_take_a_moment_and_their_bytes() -> None:
    device = DeviceModel("cuda:0 x", PEAKS, 4e12, 3e7, 8e12, 6e-6, 1, "probed", 1e-5, 1e10)
    assert device.transfer(0) == 1e-5
    assert device.transfer(1e8) == pytest.approx(1e-2 + 1e-5)
    assert GPU.transfer(1e9) == 0.0
