"""Rates are scaled until they explain what blocks of models take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mixbackend import registry
from mixbackend.calibrate.block_runs import BlockRun
from mixbackend.calibrate.blocks import standard_blocks
from mixbackend.calibrate.fitting import FACTORS, LIMITS, Fit, fit, is_live
from mixbackend.contracts import Backend, BackendRates, DeviceModel, InputRole, OpGraph, OpRate, Plan
from mixbackend.cost.priors import prior_rates
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner.placement import place
from mixbackend.partitioner.reprice import reprice
from mixbackend.partitioner.roofline import RooflineCostModel

DEVICE = DeviceModel("cpu test", (("float32", 2e11),), 1e10, 1e7, 1e11, 3e-6, 2, "probed")
NAMES = tuple(factor.name for factor in FACTORS)


def eager() -> Backend:
    return next(item for item in registry.resolve(("eager",), frozenset()) if item.name == "eager")


@pytest.fixture(scope="module")
def placed() -> list[tuple[str, OpGraph, Plan]]:
    """All blocks, on the reference alone."""
    found = []
    for block in standard_blocks(1):
        arguments = block.inputs(torch.device("cpu"))
        role = InputRole.PARAMETER if block.live else InputRole.CONSTANT
        roles = {place: PlaceholderRole(role) for place in range(1, len(arguments))}
        _, graph = trace_graph(block.function, arguments, roles=roles)
        costs = RooflineCostModel(DEVICE, {"eager": prior_rates(eager(), DEVICE)})
        found.append((block.name, graph, place(graph, [eager()], costs)))
    return found


def stated() -> BackendRates:
    """Rates of somebody who packs weights that are known."""
    rates = prior_rates(eager(), DEVICE)
    packed = ((f"{row}/constant", dtype, rate) for row, dtype, rate in rates.rates if row in ("matmul", "convolution"))
    return replace(rates, rates=(*rates.rates, *packed))


def runs_at(placed: list[tuple[str, OpGraph, Plan]], rates: BackendRates) -> list[BlockRun]:
    costs = RooflineCostModel(DEVICE, {"eager": rates})
    return [
        BlockRun(name, graph, plan, float(reprice(graph, [plan], [eager()], costs).seconds[0] or 0.0))
        for name, graph, plan in placed
    ]


def scaled(rates: BackendRates, **factors: float) -> BackendRates:
    for factor in FACTORS:
        rates = factor.scale(rates, factors.get(factor.name, 1.0))
    return rates


def fitted(runs: list[BlockRun], rates: BackendRates) -> Fit:
    found = fit(runs, [eager()], DEVICE, {"eager": rates})
    assert found is not None
    return found


def test_right_rates_stay(placed: list[tuple[str, OpGraph, Plan]]) -> None:
    rates = prior_rates(eager(), DEVICE)
    found = fitted(runs_at(placed, rates), rates)
    assert found.factors == pytest.approx(dict.fromkeys(NAMES, 1.0))
    assert found.error_before == pytest.approx(0.0, abs=1e-9)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("wrong", ["depthwise", "convolutions", "products", "weights", "live"])
def test_what_was_probed_wrong_is_found(placed: list[tuple[str, OpGraph, Plan]], wrong: str) -> None:
    rates = stated()
    runs = runs_at(placed, scaled(rates, **{wrong: 0.5}))
    found = fitted(runs, rates)
    # A little of it may be explained otherwise, but what blocks take is explained.
    assert min(found.factors, key=lambda name: found.factors[name]) == wrong
    before, after = (worst(runs, runs_at(placed, item)) for item in (rates, found.rates))
    assert after < 0.25 * before


def test_bytes_that_were_probed_too_cheap_are_explained(placed: list[tuple[str, OpGraph, Plan]]) -> None:
    """Of what blocks take they are a small part: some of it loops explain as well, but blocks take what they take."""
    rates = stated()
    runs = runs_at(placed, scaled(rates, memory=6.0))
    found = fitted(runs, rates)
    assert found.factors["memory"] > 1.5
    assert {"memory", "loops"} == {name for name in NAMES if found.factors[name] > 1.15}
    assert found.error_before > 0.05 and found.error_after < 0.35 * found.error_before


def worst(runs: list[BlockRun], estimated: list[BlockRun]) -> float:
    return max(abs(other.seconds / run.seconds - 1.0) for run, other in zip(runs, estimated, strict=True))


def test_live_weights_are_told_from_packed_ones(placed: list[tuple[str, OpGraph, Plan]]) -> None:
    """Whoever packs weights at each call is slower in training, and in training alone."""
    found = fitted(runs_at(placed, scaled(stated(), live=2.0)), stated()).rates
    for row in ("matmul", "convolution"):
        live, packed = (stated().rate(name, "float32") for name in (row, f"{row}/constant"))
        now_live, now_packed = (found.rate(name, "float32") for name in (row, f"{row}/constant"))
        assert live and packed and now_live and now_packed
        assert live.flops_per_s / now_live.flops_per_s == pytest.approx(2.0, rel=0.2)
        assert packed.flops_per_s / now_packed.flops_per_s == pytest.approx(1.0, rel=0.1)


def test_products_alone_do_not_tell_of_memory(placed: list[tuple[str, OpGraph, Plan]]) -> None:
    """They hide what they move: slow ones are slow products, and bytes keep their price."""
    rates, names = stated(), ("feed-forward", "attention", "gradients")
    slow = [run for run in runs_at(placed, scaled(rates, products=2.0)) if any(name in run.name for name in names)]
    found = fitted(slow, rates)
    assert found.factors["products"] == pytest.approx(2.0, rel=0.1)
    assert found.rates.memory_scale == pytest.approx(rates.memory_scale, rel=0.1)


def test_rows_with_live_weights() -> None:
    live = ("matmul", "matmul/turned", "convolution", "convolution/channels_last", "convolution/gradient")
    others = ("matmul/constant", "matmul/batched", "convolution/grouped", "convolution/channels_last/constant", "copy")
    assert all(map(is_live, live)) and not any(map(is_live, others))


def test_one_disturbed_run_does_not_count_much(placed: list[tuple[str, OpGraph, Plan]]) -> None:
    rates = prior_rates(eager(), DEVICE)
    runs = runs_at(placed, rates)
    disturbed = [replace(runs[0], seconds=4.0 * runs[0].seconds), *runs[1:]]
    assert fitted(disturbed, rates).error_after < 0.05


def test_what_no_block_tells_about_stays(placed: list[tuple[str, OpGraph, Plan]]) -> None:
    rates = prior_rates(eager(), DEVICE)
    images = [run for run in runs_at(placed, scaled(rates, convolutions=0.6)) if run.name.startswith("resnet")]
    found = fitted(images, rates)
    told_nothing = {"attention", "depthwise", "products", "switch"}
    assert {name for name in NAMES if found.factors[name] == pytest.approx(1.0, abs=1e-9)} >= told_nothing
    assert found.factors["convolutions"] < 0.8


def test_factors_stay_within_limits(placed: list[tuple[str, OpGraph, Plan]]) -> None:
    rates = prior_rates(eager(), DEVICE)
    slow = [replace(run, seconds=1000.0 * run.seconds) for run in runs_at(placed, rates)]
    values = np.array(list(fitted(slow, rates).factors.values()))
    assert values.max() == pytest.approx(LIMITS[1]) and values.min() >= LIMITS[0]


def test_dtypes_that_no_block_has_keep_their_arithmetic(placed: list[tuple[str, OpGraph, Plan]]) -> None:
    rates = prior_rates(eager(), DEVICE)
    half = (("matmul", "bfloat16", OpRate(1e-6, 1e12)),)
    found = fitted(runs_at(placed, scaled(rates, products=0.5)), replace(rates, rates=(*rates.rates, *half)))
    before = {(row, dtype): rate.flops_per_s for row, dtype, rate in rates.rates}
    after = {(row, dtype): rate.flops_per_s for row, dtype, rate in found.rates.rates}
    assert after["matmul", "bfloat16"] == 1e12
    assert after["matmul", "float32"] > 1.5 * before["matmul", "float32"]


def test_too_few_runs_tell_nothing(placed: list[tuple[str, OpGraph, Plan]]) -> None:
    rates = prior_rates(eager(), DEVICE)
    assert fit(runs_at(placed, rates)[:2], [eager()], DEVICE, {"eager": rates}) is None


def test_it_says_what_it_did(placed: list[tuple[str, OpGraph, Plan]]) -> None:
    rates = prior_rates(eager(), DEVICE)
    text = str(fitted(runs_at(placed, scaled(rates, depthwise=0.3)), rates))
    assert "depthwise x0." in text and "% off, now" in text
