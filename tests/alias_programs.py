"""Small random programs with views, writes into them and graph breaks, whose results alias inputs and one another."""

from __future__ import annotations

import random
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch

Value = torch.Tensor
Recipe = list[tuple[int, int, int]]

VIEWS: tuple[Callable[[Value], Value], ...] = (
    lambda x: x[1:],
    lambda x: x[0],
    lambda x: x.t() if x.dim() == 2 else x.unsqueeze(0),
    lambda x: x.reshape(-1),
    lambda x: x.split(2)[-1] if x.dim() and x.shape[0] > 1 else x.view(-1),
    lambda x: x.view(x.shape),
    lambda x: x.unsqueeze(-1),
    lambda x: x.squeeze(),
    lambda x: x[::2] if x.dim() else x.detach(),
    lambda x: x.unbind()[0] if x.dim() else x.view(1),
    lambda x: x.expand(2, *x.shape)[1],
    lambda x: x.detach(),
    lambda x: x.diagonal() if x.dim() == 2 else x.view_as(x),
    lambda x: x.as_strided(x.shape, x.stride(), x.storage_offset()),
)
OWN: tuple[Callable[[Value], Value], ...] = (
    lambda x: x * 2 + 1,
    lambda x: x.clone(),
    lambda x: x.cumsum(0) if x.dim() else x.exp(),
    lambda x: torch.relu(x).t().contiguous() if x.dim() == 2 else torch.sin(x),
    lambda x: torch.cat([x.reshape(-1), x.reshape(-1)]),
    lambda x: x.sum(-1) if x.dim() else x + 1,
)
WRITES: tuple[Callable[[Value, Value], object], ...] = (
    lambda x, y: x.add_(1),
    lambda x, y: x.mul_(0.5),
    lambda x, y: x.copy_(y.sum()),
    lambda x, y: x.fill_(2.5),
    lambda x, y: x.view(-1)[:1].zero_() if x.is_contiguous() and x.numel() else x.neg_(),
)


def program(recipe: Recipe, breaks: bool) -> Callable[..., tuple[Any, ...]]:
    """A function of two matrices that follows a recipe and returns a few of its values."""

    def function(first: Value, second: Value) -> tuple[Any, ...]:
        values = [first, second, first * 1.5]
        for kind, left, right in recipe:
            x, y = values[left % len(values)], values[right % len(values)]
            if kind < 5:
                if x.numel() > 1:
                    values.append(VIEWS[right % len(VIEWS)](x))
            elif kind < 8:
                values.append(OWN[right % len(OWN)](x))
            elif kind < 11:
                if not _overlaps(x):
                    WRITES[right % len(WRITES)](x, y)
            elif breaks:
                torch._dynamo.graph_break()
        chosen = [values[index % len(values)] for index in (recipe[0][1], recipe[-1][2], -1, len(values) // 2)]
        return (*chosen, values[-1] if len(recipe) % 2 else values[-2])

    return function


def _overlaps(x: Value) -> bool:
    return any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True))


def random_recipe(seed: int) -> Recipe:
    """A recipe drawn by a seed."""
    source = random.Random(seed)
    return [(source.randrange(12), source.randrange(60), source.randrange(60)) for _ in range(source.randrange(3, 14))]


def run_and_write(function: Callable[..., Any], requires_grad: bool) -> list[Any]:
    """What a program computes, and what writing into its results does to its inputs and other results."""
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(4, 4, generator=generator) for _ in signature(function).parameters]
    given = [value.requires_grad_().clone() for value in inputs] if requires_grad else inputs
    results = function(*given)
    seen: list[Any] = [value.detach().clone() for value in (*results, *given)]
    everything = [*results, *given]
    for value in results:
        # What shares memory with nobody may lie anywhere in it.
        shares = sum(_storage(other) == _storage(value) for other in everything) > 1
        seen.append((tuple(value.shape), value.stride(), value.storage_offset() if shares else None))
    for number, result in enumerate(results):
        with torch.no_grad():
            if not _overlaps(result):
                result.detach().add_(number + 1)
        seen += [value.detach().clone() for value in (*results, *given)]
    return seen


def _storage(value: Value) -> int:
    return value.untyped_storage().data_ptr()
