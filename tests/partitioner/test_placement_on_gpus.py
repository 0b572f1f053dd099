"""Blocks of models in half precision, placed with the figures of an H200; on fake tensors, so that no GPU is needed.

Rates of the same kernels, measured for two backends, differ a little: a plan must not alternate between them for that.
The documented figures are held against what an H200 took for ResNet-50 (the table in ``benchmarks/results/gpu.md``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.codegen.targets.triton.compiler import Architecture
from mixbackend.backends.codegen.targets.triton.target import Hardware, TritonTarget
from mixbackend.backends.cublaslt import CublasLtBackend
from mixbackend.backends.cudnn import CudnnBackend
from mixbackend.backends.eager import EagerBackend
from mixbackend.backends.inductor import InductorBackend
from mixbackend.calibrate.blocks import HALF, Block, accelerator_blocks
from mixbackend.contracts import Backend, BackendRates, DeviceModel, InputRole, OpGraph, Plan
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.cost.gpu_costs import as_replayed, sound
from mixbackend.cost.priors import prior_rates
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner import place
from mixbackend.partitioner.async_cost import HEAVY, LIGHT, balance, weighed
from mixbackend.partitioner.reprice import reprice
from mixbackend.partitioner.roofline import RooflineCostModel

PEAKS = (("float32", 5e13), ("float16", 7.9e14), ("bfloat16", 7.9e14))
H200 = DeviceModel("cuda:0 NVIDIA H200", PEAKS, 4.3e12, 3.2e7, 6e12, 6e-6, 16, "probed", 1.5e-5, 1e10)
BLOCKS = {block.name: block for block in accelerator_blocks() if block.dtype == HALF}
LIBRARY_OPS = frozenset({"matmul", "convolution", "attention"})
MARGIN = 0.04


@pytest.fixture
def backends() -> list[Backend]:
    triton = TritonTarget(Hardware(Architecture("cuda", "90", 32), 132))
    inductor = InductorBackend(frozenset({"cpu", "cuda"}))
    return [EagerBackend(), CudnnBackend(), CublasLtBackend(), CodegenBackend(triton), inductor]


@pytest.fixture(autouse=True)
def convolutions_keep_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU; a torch that was built without one makes row-major images of all convolutions on fake tensors."""

    def layout(image: torch.Tensor, *_: object) -> torch.memory_format:
        channels_last = image.dim() == 4 and image.is_contiguous(memory_format=torch.channels_last)
        return torch.channels_last if channels_last else torch.contiguous_format

    monkeypatch.setattr(torch._C, "_conv_determine_backend_memory_format", layout)


def graph_of(block: Block, samples: int = 0) -> OpGraph:
    """A block on fake tensors, of fewer samples if wanted."""
    first, *others = block.shapes
    return traced(block.function, [(samples or first[0], *first[1:]), *others], block.channels_last)


def traced(function: Callable[..., Any], shapes: Sequence[Sequence[int]], channels_last: bool) -> OpGraph:
    """A function in half precision, all but its first input known."""
    with fresh_fake_mode():
        values = [
            torch.empty(
                tuple(shape),
                dtype=torch.float16,
                device="cuda",
                memory_format=torch.channels_last if channels_last and len(shape) == 4 else torch.contiguous_format,
            )
            for shape in shapes
        ]
    roles = {place: PlaceholderRole(InputRole.CONSTANT) for place in range(1, len(values))}
    return trace_graph(function, values, roles=roles)[1]


def rates_of(backends: Sequence[Backend], disturbed: float = 0.0, seed: int = 0) -> dict[str, BackendRates]:
    """Documented figures, each multiplied by up to this share more or less."""
    generator = random.Random(seed)

    def moved(rates: BackendRates) -> BackendRates:
        rows = (
            (row, dtype, replace(rate, flops_per_s=rate.flops_per_s * (1.0 + generator.uniform(-disturbed, disturbed))))
            for row, dtype, rate in rates.rates
        )
        return replace(rates, rates=tuple(rows))

    return {item.name: moved(prior_rates(item, H200)) for item in backends}


def replayed(graph: OpGraph, backends: Sequence[Backend], rates: Mapping[str, BackendRates]) -> Plan:
    return place(graph, backends, as_replayed(sound(RooflineCostModel(H200, rates))), margin=MARGIN)


def called(graph: OpGraph, backends: Sequence[Backend], rates: Mapping[str, BackendRates]) -> tuple[float, Plan]:
    costs = sound(RooflineCostModel(H200, rates))

    def priced(plan: Plan, model: RooflineCostModel) -> float:
        return reprice(graph, [plan], backends, model).seconds[0] or 0.0

    share = balance(lambda model: place(graph, backends, model), priced, lambda share: weighed(costs, share))
    return share, place(graph, backends, weighed(costs, share), margin=MARGIN)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_one_region_or_a_few(name: str, backends: list[Backend]) -> None:
    graph = graph_of(BLOCKS[name])
    heavy = sum(graph.view(node.name).op_class in LIBRARY_OPS for node in graph.placed_nodes)
    rates = rates_of(backends)
    for plan in (replayed(graph, backends, rates), called(graph, backends, rates)[1]):
        # Attention that is written out here has one kernel in one backend: a region each, and what is around it.
        apart = sum(len(region.matches) for region in plan.regions if region.backend == "cudnn")
        assert len(plan.regions) <= max(2, heavy // 2, 2 * apart + 1), plan


@pytest.mark.parametrize("name", ["resnet/14", "resnet/56"])
def test_fused_convolutions_run_residual_blocks(name: str, backends: list[Backend]) -> None:
    graph, rates = graph_of(BLOCKS[name]), rates_of(backends)
    for plan in (replayed(graph, backends, rates), called(graph, backends, rates)[1]):
        assert [item.backend for item in plan.regions] == ["cudnn"], plan
        # Every convolution takes its ReLU along, and the last of each block its residual.
        assert len(plan.regions[0].matches) == 6


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["resnet/14", "resnet/56"])
def test_residual_blocks_stay_whole_whatever_the_noise(name: str, seed: int, backends: list[Backend]) -> None:
    graph, rates = graph_of(BLOCKS[name]), rates_of(backends, 0.15, seed)
    for plan in (replayed(graph, backends, rates), called(graph, backends, rates)[1]):
        assert len(plan.regions) == 1, plan


def test_one_sample_waits_for_the_processor_and_a_batch_for_the_gpu(backends: list[Backend]) -> None:
    rates = rates_of(backends)
    share, plan = called(graph_of(BLOCKS["resnet/56"], samples=1), backends, rates)
    assert share == HEAVY
    # Six calls of a library take longer than what they queue.
    assert plan.estimated_s > 6 * H200.launch_s
    assert called(graph_of(BLOCKS["resnet/56"]), backends, rates)[0] == LIGHT


# --- ResNet-50, batch norms folded -----------------------------------------------------------------------------------

STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""Blocks, channels inside them, and the stride of the first."""
TAKEN_MS = {"cudnn": 1.172, "inductor": 1.430}
"""In CUDA graphs, batch 32, float16."""


def residual_network(image: Any, *weights: Any) -> Any:
    """ResNet-50 as ATen sees it in inference."""
    aten, rest = torch.ops.aten, iter(weights)

    def convolve(value: Any, stride: int = 1) -> Any:
        weight, bias = next(rest), next(rest)
        padding = [weight.shape[-1] // 2] * 2
        return aten.convolution(value, weight, bias, [stride] * 2, padding, [1, 1], False, [0, 0], 1)

    value = aten.relu(convolve(image, 2))
    value = aten.max_pool2d_with_indices(value, [3, 3], [2, 2], [1, 1])[0]
    for blocks, _, first in STAGES:
        for number in range(blocks):
            stride = first if number == 0 else 1
            inner = aten.relu(convolve(aten.relu(convolve(value)), stride))
            made = convolve(inner)
            value = aten.relu(aten.add(made, convolve(value, stride) if number == 0 else value))
    pooled = aten.view(aten.mean(value, [-1, -2], True), [value.shape[0], value.shape[1]])
    weight, bias = next(rest), next(rest)
    return aten.addmm(bias, pooled, aten.t(weight))


def residual_shapes(images: int) -> Iterator[tuple[int, ...]]:
    """Of the image and of all weights, in the order in which they are read."""

    def convolution(made: int, channels: int, size: int) -> Iterator[tuple[int, ...]]:
        yield from ((made, channels, size, size), (made,))

    yield (images, 3, 224, 224)
    yield from convolution(64, 3, 7)
    channels = 64
    for blocks, inner, _ in STAGES:
        for number in range(blocks):
            yield from convolution(inner, channels, 1)
            yield from convolution(inner, inner, 3)
            yield from convolution(4 * inner, inner, 1)
            if number == 0:
                yield from convolution(4 * inner, channels, 1)
            channels = 4 * inner
    yield from ((1000, channels), (1000,))


def test_a_residual_network_is_a_few_regions_and_takes_what_an_h200_took(backends: list[Backend]) -> None:
    graph, rates = traced(residual_network, list(residual_shapes(32)), True), rates_of(backends)
    plan = replayed(graph, backends, rates)
    assert len(plan.regions) <= 5, [(item.backend, len(item.nodes)) for item in plan.regions]
    heavy = [name for item in plan.regions if item.backend == "cudnn" for name in item.nodes]
    assert sum(graph.view(name).op_class == "convolution" for name in heavy) >= 50
    singles = dict(plan.single_backend_s)
    for name, milliseconds in TAKEN_MS.items():
        assert 1e3 * singles[name] == pytest.approx(milliseconds, rel=0.15), name
    assert singles["cudnn"] < singles["inductor"] < singles["eager"]


def test_one_image_is_a_few_regions_too(backends: list[Backend]) -> None:
    graph, rates = traced(residual_network, list(residual_shapes(1)), True), rates_of(backends)
    share, plan = called(graph, backends, rates)
    assert share == HEAVY
    assert len(plan.regions) <= 5, [(item.backend, len(item.nodes)) for item in plan.regions]
