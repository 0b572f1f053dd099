"""Models that update buffers, with everything that can be on the code generator: state after many steps is eager's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from mixbackend.backends.codegen.backend import CodegenBackend


class Cache(nn.Module):
    """A key-value cache: rows are written at given positions, then all are read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 16, 8))
        self.register_buffer("values", torch.zeros(2, 16, 8, dtype=torch.bfloat16))

    def forward(self, position: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(1, position, new)
        self.values[:, 3:5] = new[:, :2]
        return torch.softmax(self.keys * 0.1, -1) + self.values


class Backwards(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.arange(12.0))
        self.register_buffer("whole", torch.arange(12))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.state.copy_(self.state.flip(0) * 0.5 + value)
        self.state.mul_(1.5)
        self.whole.copy_(self.state)
        return self.state + self.whole


class Swap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.randn(8))
        self.register_buffer("second", torch.randn(8))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        kept = self.first.clone()
        self.first.copy_(self.second)
        self.second.copy_(kept)
        return value + self.first


def normalised() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.BatchNorm2d(8))


def owners_of_writes(mixture) -> list[str]:
    graphs = mixture.report().to_dict()["graphs"]
    rows = [(region["backend"], region["ops"].get("aten.copy_.default", 0)) for g in graphs for region in g["regions"]]
    return [backend for backend, count in rows for _ in range(count)]


def assert_state_equal(mine: nn.Module, eager: nn.Module, **tolerances) -> None:
    for (name, buffer), (_, expected) in zip(mine.named_buffers(), eager.named_buffers(), strict=True):
        torch.testing.assert_close(buffer, expected, msg=lambda text, name=name: f"{name}: {text}", **tolerances)


def test_training_with_batch_normalisation(make_mixture):
    mixture = make_mixture(CodegenBackend())
    mine = normalised()
    eager = copy.deepcopy(mine)
    run = torch.compile(mine, backend=mixture)
    for step in range(4):
        value = torch.randn(4, 3, 10, 10)
        for forward, module in ((run, mine), (eager, eager)):
            module.zero_grad()
            torch.manual_seed(step)
            forward(value).square().mean().backward()
        assert_state_equal(mine, eager, rtol=1e-4, atol=1e-5)
        for left, right in zip(mine.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(left.grad, right.grad, rtol=1e-3, atol=1e-4)
    assert mine[1].num_batches_tracked == 4
    assert mixture.report().events == ()
    assert owners_of_writes(mixture) == ["codegen"] * 6
    # Statistics are written by the region that computes them, though a random op lies between the two layers.
    regions = mixture.report().to_dict()["graphs"][0]["regions"]
    together = [region for region in regions if "aten._native_batch_norm_legit_functional.default" in region["ops"]]
    assert sum(region["ops"].get("aten.copy_.default", 0) for region in together) >= 4


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [Cache, Backwards, Swap])
@pytest.mark.parametrize("when", ["first_call", "always"])
def test_state_after_many_calls(make_mixture, kind, when):
    mixture = make_mixture(CodegenBackend(), verify={"when": when})
    torch.manual_seed(1)
    mine = kind()
    eager = copy.deepcopy(mine)
    run = torch.compile(mine, backend=mixture)
    with torch.no_grad():
        for step in range(4):
            arguments = {
                Cache: (torch.tensor([step, 9, 5 + step]), torch.randn(2, 3, 8)),
                Backwards: (torch.randn(12),),
                Swap: (torch.randn(8),),
            }[kind]
            torch.testing.assert_close(run(*arguments), eager(*arguments))
            assert_state_equal(mine, eager)
    assert mixture.report().events == ()
    assert set(owners_of_writes(mixture)) == {"codegen"}


def test_an_argument_that_is_changed(make_mixture):
    mixture = make_mixture(CodegenBackend())

    def function(target, value):
        target[1:3].add_(value)
        return target.sum()

    run = torch.compile(function, backend=mixture)
    mine, eager = torch.ones(4, 5), torch.ones(4, 5)
    for _ in range(3):
        torch.testing.assert_close(run(mine, torch.full((5,), 2.0)), function(eager, torch.full((5,), 2.0)))
        torch.testing.assert_close(mine, eager)
    assert owners_of_writes(mixture) == ["codegen"]


def test_overlapping_arguments_are_told_apart(make_mixture):
    mixture = make_mixture(CodegenBackend())

    def function(target, part):
        target.mul_(2.0)
        part.add_(1.0)
        return target + part.sum()

    run = torch.compile(function, backend=mixture)
    mine, eager = torch.arange(6.0), torch.arange(6.0)
    for _ in range(2):
        torch.testing.assert_close(run(mine, mine[1:4]), function(eager, eager[1:4]))
        torch.testing.assert_close(mine, eager)


def test_a_new_process_loads_what_writes(make_mixture):
    states = []
    for _ in range(2):
        torch._dynamo.reset()
        torch.manual_seed(2)
        mixture = make_mixture(CodegenBackend())
        module = Swap()
        run = torch.compile(module, backend=mixture)
        for _ in range(3):
            run(torch.ones(8))
        states.append([buffer.clone() for buffer in module.buffers()])
    assert all(torch.equal(*pair) for pair in zip(*states, strict=True))
    assert any(region["cached"] for graph in mixture.report().to_dict()["graphs"] for region in graph["regions"])
