"""Attention that models write out: found as one, placed as one, and computed as eager does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from region_arguments import arguments

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.codegen.interpret.program import interpret_program
from mixbackend.backends.codegen.ir.check import check_program, check_stages
from mixbackend.backends.codegen.ir.kernel import TemplateKernel
from mixbackend.backends.codegen.ir.program import Program
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import Plan, Region
from mixbackend.contracts.numerics import find_deviation
from mixbackend.cost.device_priors import prior_device
from mixbackend.cost.priors import prior_rates
from mixbackend.execute.verify import eager_result, reference_result
from mixbackend.graph.regions import cut_regions
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner.placement import place
from mixbackend.partitioner.roofline import RooflineCostModel

BACKENDS = (CodegenBackend(), EagerBackend())
DEVICE = prior_device("cpu")
COSTS = RooflineCostModel(DEVICE, {item.name: prior_rates(item, DEVICE) for item in BACKENDS})
Function = Callable[..., torch.Tensor]
softmax, safe_softmax = torch.ops.aten._softmax.default, torch.ops.aten._safe_softmax.default


def values(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def three(*sizes: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [values(*sizes, dtype=dtype, seed=seed) for seed in range(3)]


def plan_of(function: Function, inputs: Sequence[torch.Tensor], **options: Any) -> Plan:
    return place(trace_graph(function, inputs, **options)[1], BACKENDS, COSTS)


def region_of(function: Function, inputs: Sequence[torch.Tensor], *, dynamic: bool = False) -> Region:
    """The one region of a function, which holds one match."""
    module, graph = trace_graph(function, inputs, dynamic=dynamic)
    plan = place(graph, BACKENDS, COSTS)
    (planned,) = [item for item in plan.regions if item.matches]
    assert len(planned.matches) == 1
    (region,) = [item.region for item in cut_regions(module, graph, plan) if item.region.matches]
    return region


def check(function: Function, inputs: Sequence[torch.Tensor]) -> Program:
    """The program of a function that is one region, after its results were held against eager."""
    region = region_of(function, inputs)
    actual = arguments(region, inputs)
    check_stages(lower_region(region))
    program = BACKENDS[0].program(region)
    check_program(program)
    expected = eager_result(region, actual)
    reference = reference_result(region, actual, expected)
    for results in (BACKENDS[0].compile(region).run(actual), interpret_program(program, actual)):
        for index, (result, eager, exact) in enumerate(zip(results, expected, reference, strict=True)):
            assert (result.shape, result.stride(), result.dtype) == (eager.shape, eager.stride(), eager.dtype)
            deviation = find_deviation(index, result, eager, exact, BACKENDS[0].traits().error_budget)
            assert deviation is None, f"{deviation}\n{result}\n{eager}"
    return program


def kernels(program: Program) -> list[str]:
    return ["attention" if isinstance(call.kernel, TemplateKernel) else "loops" for call in program.calls]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain(dtype):
    program = check(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, three(6, 20, 8, dtype=dtype))
    assert kernels(program) == ["attention"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "written",
    [
        lambda q, k, v, m: (q @ k.mT * 0.3).softmax(-1) @ v,
        lambda q, k, v, m: (q @ k.mT / 1.7).softmax(-1) @ v,
        lambda q, k, v, m: ((q / 1.7) @ (0.8 * k).mT * 0.5).softmax(-1) @ (v * 2),
        lambda q, k, v, m: ((q * 0.5) @ (q * 0.5).mT).softmax(-1) @ v + q * 0.5,
        lambda q, k, v, m: ((q + 0.5) @ (k * k).mT).softmax(-1) @ v,
        lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v,
        lambda q, k, v, m: (m + q @ k.mT / 1.7).softmax(-1).clone() @ v,
        lambda q, k, v, m: (q @ k.mT * 0.3 + m + m[:, :1].exp()).softmax(-1) @ v,
    ],
)
def test_scales_and_masks(written):
    for sizes in ((2, 3, 20, 20), (1, 3, 20, 20), (2, 1, 1, 20)):
        check(written, [*three(2, 3, 20, 8), values(*sizes, seed=4)])


def test_windows_of_a_shifted_image():
    """As Swin writes it: a bias per head, a mask per window, one packed product before."""

    def block(x, bias, mask):
        query, key, value = x.view(4, 9, 3, 3, 8).permute(2, 0, 3, 1, 4).unbind(0)
        scores = query * 0.35 @ key.transpose(-2, -1) + bias
        scores = scores.view(-1, 2, 3, 9, 9) + mask.unsqueeze(1).unsqueeze(0)
        weights = scores.view(-1, 3, 9, 9).softmax(-1).clone()
        return (weights @ value).transpose(1, 2).reshape(4, 9, 24)

    program = check(block, [values(4, 9, 72), values(1, 3, 9, 9, seed=1), values(2, 9, 9, seed=2)])
    assert kernels(program) == ["loops", "attention"], "the masks are added once, the scale of queries is the kernel's"
    (attention,) = [call.kernel for call in program.calls if isinstance(call.kernel, TemplateKernel)]
    assert program.calls[-1].kernel is attention, "the result is written where it is wanted"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [softmax, safe_softmax])
def test_rows_that_are_hidden_throughout(function):
    mask = torch.zeros(20, 20)
    mask[3] = mask[5, 1:] = -math.inf

    def block(q, k, v, m):
        scores = q @ k.mT + m
        return (function(scores, -1, False) if function is softmax else function(scores, -1)) @ v

    check(block, [*three(6, 20, 8), mask])
    few = [*(item[:, :2] for item in three(6, 20, 8)), mask[3:5, :2]]
    check(block, few)


def test_one_compilation_serves_all_batches():
    function = lambda q, k, v: (q @ k.mT * 0.3).softmax(-1) @ v  # noqa: E731 - one expression
    region = region_of(function, three(6, 20, 8), dynamic=True)
    compiled = BACKENDS[0].compile(region)
    for batch, length in ((6, 20), (2, 33), (1, 5)):
        inputs = three(batch, length, 8)
        (result,) = compiled.run(arguments(region, inputs))
        torch.testing.assert_close(result, function(*inputs), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v, m: (q @ k.mT).softmax(-2) @ v,
        lambda q, k, v, m: (q @ k.mT).softmax(-1).mT @ v,
        lambda q, k, v, m: ((q @ k.mT)[:1] + m).softmax(-1) @ v,
        lambda q, k, v, m: torch.relu(q @ k.mT).softmax(-1) @ v,
        lambda q, k, v, m: torch.add(q @ k.mT, m, alpha=2).softmax(-1) @ v,
        lambda q, k, v, m: (q @ k.mT * m).softmax(-1) @ v,
        lambda q, k, v, m: torch.stack([(weights := (q @ k.mT).softmax(-1)) @ v, weights @ q]),
        lambda q, k, v, m: ((q @ k.mT).double() + m).softmax(-1).float() @ v,
    ],
)
def test_what_only_looks_like_it_is_left_apart(function):
    inputs = [*three(6, 20, 20), values(6, 20, 20, seed=4)]
    assert not any(region.matches for region in plan_of(function, inputs).regions)


def test_patterns_have_names_of_their_own():
    assert len({pattern.name for pattern in BACKENDS[0].patterns()}) == len(BACKENDS[0].patterns()) > 0
