"""A8: what draws random numbers on the processor is checked with the numbers that it drew; where eager itself is far
from the reference, the check says that it cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from flat_costs import FlatCosts
from plain_backend import PlainBackend

from mixbackend.backends.eager import EagerBackend
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.contracts import (
    Backend,
    CompiledRegion,
    ErrorBudget,
    OpView,
    Region,
    Supported,
    Traits,
    Verdict,
)
from mixbackend.cost import costs as costs_module
from mixbackend.execute.verify import check_region, eager_result, random_states
from mixbackend.graph.trace import trace_region
from mixbackend.registry import isolated_registry

BUDGET = ErrorBudget(factor=4.0, floor=64.0)
aten = torch.ops.aten


class Drawing(PlainBackend):
    """Says that it draws what eager draws."""

    name = "drawing"

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.change = change

    def traits(self) -> Traits:
        return Traits(keeps_random_stream=True)

    def judge(self, view: OpView) -> Verdict:
        return Supported()

    def compile(self, region: Region) -> CompiledRegion:
        forward = region.graph_module.forward

        def run(inputs: Sequence[Any]) -> list[torch.Tensor]:
            return [self.change(output.clone()) for output in forward(*inputs)]

        return CompiledRegion(run, strides="unknown")


def _dropped(x):
    return torch.nn.functional.dropout(x * 2, 0.5) + 1


@pytest.fixture
def compiled(tmp_path, monkeypatch) -> Iterator[Callable[[Backend], tuple[Callable[..., Any], Mixture]]]:
    monkeypatch.setattr(costs_module, "cost_model", lambda *_, **__: FlatCosts(seconds={"eager": 1e-3}))
    contexts = []

    def make(backend):
        torch._dynamo.reset()
        contexts.append(isolated_registry(backend, EagerBackend()))
        contexts[-1].__enter__()
        mixture = Mixture(load_config({"backends": [backend.name, "eager"], "cache": {"dir": str(tmp_path / "cache")}}))
        return torch.compile(_dropped, backend=mixture), mixture

    yield make
    for context in reversed(contexts):
        context.__exit__(None, None, None)


def _kinds(mixture):
    return [event.kind for event in mixture.report().events if event.kind not in ("threads", "tuning")]


def test_a_backend_that_returns_zeros_is_found(compiled):
    call, mixture = compiled(Drawing(torch.zeros_like))
    value = torch.randn(64, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(5)
    made, after = call(value), torch.get_rng_state()
    torch.manual_seed(5)
    assert torch.equal(made, _dropped(value)) and torch.equal(after, torch.get_rng_state())
    assert "verify_failed" in _kinds(mixture)


def test_a_backend_that_draws_as_eager_does_is_right(compiled):
    call, mixture = compiled(Drawing(lambda value: value))
    value = torch.randn(64, generator=torch.Generator().manual_seed(0))
    for seed in (5, 6):
        torch.manual_seed(seed)
        made, after = call(value), torch.get_rng_state()
        torch.manual_seed(seed)
        assert torch.equal(made, _dropped(value)) and torch.equal(after, torch.get_rng_state())
    assert not _kinds(mixture)


@pytest.mark.parametrize("draw", [aten.rand_like, aten.randn_like, aten.bernoulli, aten.poisson, aten.exponential])
def test_what_was_drawn_is_drawn_again(draw):
    value = torch.rand(32, generator=torch.Generator().manual_seed(1))
    region = trace_region(lambda x: draw(x) * 3, [value])
    torch.manual_seed(7)
    states = random_states(region)
    right = eager_result(region, [value])
    assert check_region(region, [value], right, BUDGET, states=states).right
    assert check_region(region, [value], [torch.zeros(32)], BUDGET, states=states).deviation is not None
    torch.manual_seed(8)
    other = eager_result(region, [value])
    assert check_region(region, [value], other, BUDGET, states=states).deviation is not None


def test_right_numbers_are_not_enough_where_the_generator_stays_behind():
    region = trace_region(aten.rand_like, [torch.ones(32)])
    states = random_states(region)
    with torch.random.fork_rng([]):
        right = eager_result(region, [torch.ones(32)])
    check = check_region(region, [torch.ones(32)], right, BUDGET, states=states)
    assert check.deviation.measure == "random" and "generator" in str(check.deviation)


@pytest.fixture
def dtype_reader():
    """An operator whose float64 kernel computes something else."""
    library = torch.library.Library("mixbackend_a08", "FRAGMENT")
    library.define("odd(Tensor x) -> Tensor")
    library.impl("odd", lambda x: x * (3 if x.dtype is torch.float64 else 2), "CPU")
    library.impl("odd", torch.empty_like, "Meta")
    yield torch.ops.mixbackend_a08.odd
    library._destroy()


def test_where_eager_is_far_from_the_reference_nothing_can_be_told(dtype_reader):
    value = torch.randn(32, generator=torch.Generator().manual_seed(0))
    region = trace_region(lambda x: dtype_reader(x) + 0.5, [value])
    right = eager_result(region, [value])
    for result in (right[0], torch.zeros(32)):
        check = check_region(region, [value], [result], BUDGET)
        assert check.deviation is None and not check.right
        assert "float64" in check.unknown and "rounding explains" in check.unknown
    assert check_region(region, [value], [right[0] * 50], BUDGET).deviation is not None


def test_noise_that_is_all_there_is_leaves_nothing_unknown():
    generator = torch.Generator().manual_seed(0)
    value, weight = (torch.randn(64, 64, generator=generator).bfloat16() for _ in range(2))
    region = trace_region(lambda x, w: (x @ w) - ((x * 2) @ w) / 2, [value, weight])
    assert check_region(region, [value, weight], eager_result(region, [value, weight]), BUDGET).right
