"""A number that is read from a tensor is read where the program reads it: before what is written into it later."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import mixbackend
from mixbackend.contracts import OpGraph, Plan, PlannedRegion, find_problems
from mixbackend.execute.stitch import stitch
from mixbackend.execute.verify import eager_result
from mixbackend.graph.regions import cut_regions
from mixbackend.graph.trace import trace_graph

Program = Callable[..., Any]

MIXTURES: list[Any] = [
    {"backends": ["eager"]},
    {"backends": ["codegen", "eager"]},
    # A border at every multiplication: numbers cross regions.
    {"backends": ["codegen", "eager"], "rules": [{"match": {"op": "aten.mul*"}, "require": "eager"}]},
    {"backends": ["codegen", "eager"], "rules": [{"match": {"op": "aten.add*"}, "require": "eager"}]},
]


def counted(count: torch.Tensor, y: torch.Tensor) -> Any:
    n = count.item()
    count.add_(1)
    return y * n


def counted_through_a_view(count: torch.Tensor, y: torch.Tensor) -> Any:
    n = count.view(1)[0].item()
    count.add_(1)
    return (y * n) @ y.t(), count * 2


def of_two_reads(count: torch.Tensor, y: torch.Tensor) -> Any:
    before = count.item()
    count.mul_(3)
    after = count.item()
    count.sub_(1)
    return y * before, y + after, y * count.item()


def sums_of_numbers(count: torch.Tensor, y: torch.Tensor) -> Any:
    n = count.item()
    count.add_(2)
    m = count.item()
    return y * (n + m), y + (n * m), n - m


def returned_alone(count: torch.Tensor, y: torch.Tensor) -> Any:
    n = count.item()
    count.add_(y.sum().to(count.dtype) * 0 + 1)
    return n, y.exp()


def compared(count: torch.Tensor, y: torch.Tensor) -> Any:
    n = count.item()
    torch._check(n >= 0)
    torch._check(n < 100)
    count.add_(1)
    return y * torch.sym_max(n, 2) + torch.sym_min(n, 2), y.sum() * n


def of_a_computed_view(count: torch.Tensor, y: torch.Tensor) -> Any:
    n = (count + y.sum().to(count.dtype)).item()
    count.copy_(count + n)
    return y * n


def of_a_returned_view(count: torch.Tensor, y: torch.Tensor) -> Any:
    view = count.view(1)
    return view, view * 2, (y @ y.t()).exp() * view.item()


def filled(count: torch.Tensor, y: torch.Tensor) -> Any:
    n = count.item()
    count.add_(1)
    return torch.full((3,), n, dtype=torch.float32) + y.sum()


def sized(count: torch.Tensor, y: torch.Tensor) -> Any:
    n = count.item()
    torch._check(n >= 0)
    torch._check(n < 50)
    count.add_(1)
    return torch.arange(n) * 2


PROGRAMS = (
    counted,
    counted_through_a_view,
    of_two_reads,
    sums_of_numbers,
    returned_alone,
    compared,
    of_a_computed_view,
    of_a_returned_view,
    filled,
    sized,
)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("mixture", range(len(MIXTURES)))
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_integers(program: Program, mixture: int) -> None:
    held_against_eager(program, MIXTURES[mixture], lambda: (torch.tensor(3), torch.ones(2, 2)))


@pytest.mark.parametrize("program", (counted, counted_through_a_view, sums_of_numbers, of_a_computed_view, filled))
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_floats(program: Program) -> None:
    held_against_eager(program, MIXTURES[2], lambda: (torch.tensor(3.5), torch.ones(2, 2)))


class Steps(torch.nn.Module):
    """Counts its calls in a buffer, as optimizers, caches and schedules do."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("count", torch.tensor([5, 1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = self.count[0].item()
        self.count += 1
        return torch.nn.functional.relu(self.linear(x)) * n


@pytest.mark.sampled(1)
@pytest.mark.parametrize("grad", [False, True])
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_counters_of_modules(grad: bool) -> None:
    expected, compiled = Steps(), Steps()
    compiled.load_state_dict(expected.state_dict())
    run = torch.compile(compiled, backend=mixbackend.auto({"backends": ["codegen", "eager"]}))
    x = torch.randn(3, 4)
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            torch.testing.assert_close(run(x), expected(x))
    torch.testing.assert_close(compiled.count, expected.count)


def held_against_eager(program: Program, configuration: Any, make: Callable[[], tuple[torch.Tensor, ...]]) -> None:
    """Three calls on one counter, which goes on counting."""
    torch._dynamo.reset()
    run = torch.compile(program, backend=mixbackend.auto(configuration), fullgraph=True)
    given, expected = make(), make()
    for _ in range(3):
        torch.testing.assert_close(run(*given), program(*expected))
        torch.testing.assert_close(given, expected)


def counting(recipe: list[tuple[int, int]]) -> Program:
    """A function that reads numbers off a counter, reckons with them, and writes into the counter on the way."""

    def function(count: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        values, numbers = [y], [1]
        for kind, choice in recipe:
            value, number = values[choice % len(values)], numbers[choice % len(numbers)]
            if kind == 0:
                numbers.append(count[choice % 2].item())
            elif kind == 1:
                numbers.append(number + numbers[-1])
            elif kind == 2:
                torch.ops.aten.copy_.default(count, count + number)
            elif kind == 3:
                torch.ops.aten.copy_.default(count[:1], count[1:] * 2)
            elif kind == 4:
                values.append(value * number)
            elif kind == 5:
                values.append(value + count.sum())
            else:
                values.append(value.t())
        return (*values[1:], numbers[-1] * y)

    return function


def random_regions(graph: OpGraph, source: random.Random) -> tuple[PlannedRegion, ...]:
    """Legal regions in a legal order, found by trying merges and moves."""
    regions = [PlannedRegion(f"r{place}", "eager", (node.name,)) for place, node in enumerate(graph.placed_nodes)]
    position = {node.name: place for place, node in enumerate(graph.nodes)}
    for _ in range(40):
        candidate = list(regions)
        taken = candidate.pop(source.randrange(len(candidate)))
        place = source.randrange(len(candidate) + 1)
        if place < len(candidate) and source.random() < 0.5:
            names = sorted((*candidate[place].nodes, *taken.nodes), key=position.__getitem__)
            candidate[place] = PlannedRegion(candidate[place].id, "eager", tuple(names))
        else:
            candidate.insert(place, taken)
        if not find_problems(graph, candidate, ("eager",)):
            regions = candidate
    return tuple(regions)


@pytest.mark.nightly
@given(recipe=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 50)), min_size=2, max_size=14), seed=st.integers())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_any_legal_plan_reads_in_order(recipe: list[tuple[int, int]], seed: int) -> None:
    function = counting(recipe)
    module, graph = trace_graph(function, [torch.tensor([3, 4]), torch.ones(2, 2)], dynamic=True)
    plan = Plan(graph.id, graph.phase, graph.dynamic, random_regions(graph, random.Random(seed)))
    bound = cut_regions(module, graph, plan)
    calls = [lambda inputs, region=item.region: eager_result(region, inputs) for item in bound]
    run = stitch(module, graph, bound, calls).run
    given_count, expected_count = torch.tensor([3, 4]), torch.tensor([3, 4])
    mine = run([given_count, torch.ones(2, 2)])
    torch.testing.assert_close(tuple(mine), function(expected_count, torch.ones(2, 2)))
    torch.testing.assert_close(given_count, expected_count)
