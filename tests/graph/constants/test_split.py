"""What becomes a constant: what depends on weights alone, but no quantised weight as wider numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.contracts import InputRole
from mixbackend.graph.constants.split import Split, split_constants
from mixbackend.graph.describe import PlaceholderRole


def split(function: Callable[..., Any], x: torch.Tensor, *weights: torch.Tensor) -> Split:
    module = make_fx(function, tracing_mode="fake")(x, *weights)
    names = [node.name for node in module.graph.find_nodes(op="placeholder")][1:]
    roles = {name: PlaceholderRole(InputRole.BUFFER, name) for name in names}
    return split_constants(module, roles, frozenset(names))


def constants(made: Split) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    (output,) = made.constants.graph.find_nodes(op="output")
    return [(node.meta["val"].dtype, tuple(node.meta["val"].shape)) for node in output.args[0]]


@pytest.mark.parametrize("stored", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_quantised_weights_are_not_widened(stored: torch.dtype) -> None:
    def linear(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x @ w.t().to(x.dtype)) * scale.to(x.dtype)

    weight = torch.ones(6, 8).to(stored)
    made = split(linear, torch.randn(3, 8).bfloat16(), weight, torch.rand(6))
    assert constants(made) == [(stored, (8, 6)), (torch.bfloat16, (6,))]
    torch.testing.assert_close(
        made.main(torch.ones(3, 8).bfloat16(), *made.constants(weight, torch.ones(6))),
        torch.full((3, 6), 8.0).bfloat16(),
    )


def test_groups_of_quantised_weights_are_not_widened() -> None:
    def linear(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        wide = (w.view(6, 2, 4).float() * scale.unsqueeze(-1)).view(6, 8)
        return x @ wide.t()

    made = split(linear, torch.randn(3, 8), torch.ones(6, 8, dtype=torch.int8), torch.rand(6, 2))
    assert constants(made) == [(torch.int8, (6, 2, 4)), (torch.float32, (6, 2, 1))]


def test_what_is_not_larger_is_made_once() -> None:
    """Sums of a quantised weight, and other weights as wider numbers."""

    def function(x: torch.Tensor, w: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (x * w.sum(1, dtype=torch.float32)[:3, None]).masked_fill(mask, 0.0) + mask.float()

    made = split(function, torch.randn(3, 8), torch.ones(6, 8, dtype=torch.int8), torch.eye(3, 8) > 0)
    assert (torch.float32, (3, 1)) in constants(made) and (torch.float32, (3, 8)) in constants(made)


def test_sizes_that_a_guard_made_numbers() -> None:
    """Their tensors state numbers, but torch does not tell how large they are."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        assert w.shape[0] == 7
        return x * (w + 1).exp()

    module = make_fx(function, tracing_mode="symbolic")(torch.ones(3, 7), torch.ones(7))
    name = module.graph.find_nodes(op="placeholder")[1].name
    made = split_constants(module, {name: PlaceholderRole(InputRole.BUFFER, name)}, frozenset({name}))
    assert constants(made) == [(torch.float32, (7,))]
