"""Bodies of higher-order ops are placed by themselves: results, gradients and state are eager's, and each distinct body
is compiled once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint

from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config

region = torch.compiler.nested_compile_region


class Layer(nn.Module):
    """A block with weights, whose ops are few and of several kinds."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.dropout = dropout

    @region
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = nn.functional.gelu(self.up(self.norm(x)))
        return x + nn.functional.dropout(self.down(wide), self.dropout, self.training)


class Repeated(nn.Module):
    """Equal layers with weights of their own, each a region."""

    def __init__(self, layers: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(dropout) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x * 2


@region
def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ weight) + x.sum(0)


@region
def bell(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(-x * x)


@region
def two_bells(x: torch.Tensor) -> torch.Tensor:
    return bell(x) + bell(x + 1)


@region
def dropped(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(torch.sin(x), 0.5)


def products(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return product(product(product(x, weight), weight.sin()), weight)


def products_of_views(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    views = (x, x.sin(), x.t(), x.sin().t(), x.t().contiguous())
    return torch.stack([product(view, weight) for view in views])


def bells(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return two_bells(x) * two_bells(x * 2)


def random_draws(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return dropped(dropped(torch.rand_like(x) + x)) + nn.functional.dropout(weight, 0.3)


def branches(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    first = torch.cond(x.sum() > 0, lambda x: torch.tanh(x @ weight), lambda x: x.sin() + weight, (x,))
    return torch.cond(first.sum() > 0, lambda x: x * 2, lambda x: x.cos(), (first,))


def loop(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    count = torch.zeros((), dtype=torch.int64)
    more = lambda i, y: (i < 5) & (y.sum() < 1e6)  # noqa: E731
    return while_loop(more, lambda i, y: (i + 1, torch.tanh(y @ weight) + y), (count, x))[1]


def scanned(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return scan(lambda carry, row: (torch.tanh(carry @ weight) + row, carry * 2), x[0], x)


def scanned_along_columns(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    begin = x[:, 0].contiguous()
    return scan(lambda carry, row: (torch.tanh(weight @ carry) + row, carry * 2), begin, x, dim=1)


def mapped(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return map_over(lambda row, weight: torch.tanh(row @ weight) + 1, x, weight)


def checkpointed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x: products(x, weight), x, use_reentrant=False) * 2


PROGRAMS = (
    *(products, products_of_views, bells, random_draws, branches, loop, scanned, scanned_along_columns),
    *(mapped, checkpointed),
)


@pytest.fixture
def mixture() -> Mixture:
    """Compiles with what is quick to compile; whatever fails is raised."""
    return Mixture(load_config({"backends": ["codegen", "eager"], "on_failure": "raise", "select": "off"}))


def outcome(program: Callable[..., Any], given: tuple[torch.Tensor, ...], backward: bool, seed: int) -> list[Any]:
    """Results, gradients, and the next random number."""
    inputs = [value.detach().clone().requires_grad_(backward) for value in given]
    torch.manual_seed(seed)
    with torch.set_grad_enabled(backward):
        results = program(*inputs)
        if backward:
            found = results if isinstance(results, tuple) else (results,)
            sum(item.square().sum() for item in found).backward()
    return [results, [value.grad for value in inputs], torch.rand(())]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("dynamic", "backward"),
    [(False, False), (False, True), (True, True)],
    ids=["inference", "training", "dynamic training"],
)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_results_and_gradients_are_eagers(
    mixture: Mixture, program: Callable[..., Any], dynamic: bool, backward: bool
) -> None:
    compiled = torch.compile(program, backend=mixture, dynamic=dynamic, fullgraph=True)
    for size, seed in ((8, 1), (8, 2), (6, 3)) if dynamic else ((8, 1), (8, 2)):
        torch.manual_seed(seed)
        # Sums of both signs: both branches are taken.
        given = torch.randn(size, size) * 0.3 + (-1) ** seed, torch.randn(size, size) * 0.3
        torch.testing.assert_close(
            outcome(compiled, given, backward, seed), outcome(program, given, backward, seed), rtol=1e-4, atol=1e-5
        )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("program", [products, branches, loop, scanned, mapped], ids=lambda program: program.__name__)
def test_bodies_are_graphs_of_the_report(mixture: Mixture, program: Callable[..., Any]) -> None:
    given = torch.randn(8, 8) * 0.3, torch.randn(8, 8) * 0.3
    outcome(torch.compile(program, backend=mixture, fullgraph=True), given, True, 0)
    report = mixture.report()
    whole, inside = report.graphs[0], [record for record in report.graphs if record.graph.id.startswith("forward-0.")]
    bodies = [body for node in whole.graph.placed_nodes for body in node.bodies]
    assert inside and {body.graph for body in bodies} == {record.graph.id for record in inside}
    assert any(region.backend == "codegen" for record in inside for region in record.plan.regions)
    placed = {record.graph.id: record.plan.estimated_s for record in inside}
    assert all(body.placed_s == placed[body.graph] for body in bodies)
    assert "calls their bodies, which are graphs of their own: forward-0." in " ".join(str(report).split())


def test_equal_layers_are_planned_and_compiled_once(mixture: Mixture) -> None:
    model = Repeated(6)
    expected = copy.deepcopy(model)
    x = torch.randn(4, 16)
    compiled = torch.compile(model, backend=mixture)
    for module in (compiled, expected):
        module(x).square().sum().backward()
    for ours, eagers in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, eagers.grad, rtol=1e-4, atol=1e-5)
    # The first layer's input needs no gradient: it is a body of its own, or part of the graph.
    forward = [record for record in mixture.report().graphs if record.graph.id.startswith("forward-0.")]
    assert 1 <= len(forward) <= 2


def test_repeated_layers_are_called_past_the_dispatcher(mixture: Mixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's dispatcher looks at every operand of every layer; a compiled body needs none of it."""
    model, x = Repeated().eval(), torch.randn(4, 16)
    compiled = torch.compile(model, backend=mixture)
    calls: list[str] = []
    with torch.no_grad():
        compiled(x)
        operator = torch.ops.higher_order.invoke_subgraph
        monkeypatch.setattr(type(operator), "__call__", lambda *_, **__: calls.append("dispatched"))
        result = compiled(x)
    torch.testing.assert_close(result, model(x))
    assert not calls


def test_layers_keep_their_weights_and_see_them_change(mixture: Mixture) -> None:
    model = Repeated(4).eval()
    x = torch.randn(4, 16)
    compiled = torch.compile(model, backend=mixture)
    with torch.no_grad():
        for _ in range(2):
            for _ in range(3):
                torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
            model.layers[2].up.weight.mul_(1.5)
        model.load_state_dict(Repeated(4).state_dict())
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_dropout_in_layers_draws_eagers_numbers(mixture: Mixture) -> None:
    model, x = Repeated(3, dropout=0.4), torch.randn(4, 16)
    compiled = torch.compile(model, backend=mixture)
    torch.testing.assert_close(outcome(compiled, (x,), True, 5), outcome(model, (x,), True, 5), rtol=1e-4, atol=1e-5)


def test_a_failing_region_of_a_body_is_repaired_there(make_mixture: Any, faulty: Any) -> None:
    """Its graph goes on without the backend that failed; the op that calls it stays where it was."""
    mixture = make_mixture(faulty(lambda outputs: [value + 1 for value in outputs]), on_failure="repair")
    x, weight = torch.randn(8, 8), torch.randn(8, 8)
    compiled = torch.compile(products, backend=mixture)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x, weight), products(x, weight))
    kinds = {(event.kind, event.graph) for event in mixture.report().events}
    assert ("verify_failed", "inference-0.repeated_subgraph0") in kinds
