"""A process that compiles programs by name and tells what came of them; for ``test_stored_graphs``.

Arguments: the backend ("inductor", or keys of a configuration as JSON), then names of programs. Writes one line of JSON
for each program: whether results equal eager's, and how often AOTAutograd's cache had the graph.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import mixbackend


class Images(nn.Module):
    """Buffers that are updated, random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(functional.dropout(self.norm(self.convolution(image)).relu(), 0.25).mean((-1, -2)))


class Tokens(nn.Module):
    """A layer of a language model, on lengths that differ, with a head that is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of all tokens."""
        return self.block(self.embedding(tokens)) @ self.embedding.weight.t()


class Checkpointed(nn.Module):
    """A part that is computed again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """The part, twice."""
        return checkpoint(self.part, checkpoint(self.part, value, use_reentrant=False), use_reentrant=False)


class Cache(nn.Module):
    """A buffer that is written in place, and a result that is a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(8, 4))

    def forward(self, position: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum, and the rows that were there first."""
        self.kept.index_copy_(0, position, new)
        return self.kept.sum(0), self.kept[2:]


def several_views(value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Results that share memory with each other and with the input."""
    doubled = value * 2
    return doubled, doubled.t(), doubled[1:, ::2], value[1:], value.exp().as_strided((2, 2), (1, 3), 1)


def constant(value: torch.Tensor) -> torch.Tensor:
    """A constant that Dynamo writes into the graph."""
    return value + torch.tensor([1.0, 2.0, 3.0]) * float("inf")


def third(value: torch.Tensor) -> torch.Tensor:
    """A symbolic float, of which no text is written."""
    return value * (value.shape[0] / 3)


def _images(size: int = 5) -> tuple[torch.Tensor, ...]:
    return (torch.randn(size, 3, 9, 9, generator=torch.Generator().manual_seed(size)),)


Program = tuple[Callable[[], Any], list[tuple[torch.Tensor, ...]], bool | None, bool]
PROGRAMS: dict[str, Program] = {
    "inference": (lambda: Images().eval(), [_images()], None, False),
    "training": (Images, [_images()], None, True),
    "training on sizes": (Images, [_images(5), _images(7)], True, True),
    "tokens": (Tokens, [(torch.arange(12).view(2, 6),), (torch.arange(20).view(2, 10),)], True, True),
    "checkpointed": (Checkpointed, [(torch.ones(3, 8),)], None, True),
    "cache": (Cache, [(torch.tensor([2, 5]), torch.ones(2, 4)), (torch.tensor([1, 3]), torch.ones(2, 4))], None, False),
    "views": (lambda: several_views, [(torch.arange(12.0).view(3, 4),)], None, False),
    "constant": (lambda: constant, [(torch.ones(2, 3),)], None, False),
    "third": (lambda: third, [(torch.ones(2, 3),), (torch.ones(4, 3),)], True, False),
}


def results(function: Any, inputs: list[tuple[torch.Tensor, ...]], training: bool) -> list[torch.Tensor]:
    """All that calls return, with gradients and buffers."""
    found: list[torch.Tensor] = []
    for call in inputs:
        torch.manual_seed(3)
        with torch.set_grad_enabled(training):
            result = function(*copy.deepcopy(call))
            found += result if isinstance(result, tuple) else [result]
            if training:
                result.square().mean().backward()
    if isinstance(function, nn.Module):
        found += [item.grad for item in function.parameters() if item.grad is not None]
        found += list(function.buffers())
    return [item.detach().clone() for item in found]


def main() -> None:
    chosen, *names = sys.argv[1:]
    backend = chosen if chosen == "inductor" else mixbackend.auto(json.loads(chosen))
    for name in names:
        make, inputs, dynamic, training = PROGRAMS[name]
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = make()
        expected = results(copy.deepcopy(model), inputs, training)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            mine = results(torch.compile(model, backend=backend, dynamic=dynamic), inputs, training)
        for one, other in zip(mine, expected, strict=True):
            torch.testing.assert_close(one, other, equal_nan=True)
        found = {key.removeprefix("autograd_cache_"): number for key, number in counters["aot_autograd"].items()}
        print(json.dumps({"name": name, "warned": [str(item.message) for item in warned], **found}), flush=True)


if __name__ == "__main__":
    main()
