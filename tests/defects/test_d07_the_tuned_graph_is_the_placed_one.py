"""D7: the graph that tuning measures is the one that is placed, node for node: factories that depend on nothing but
forms, folded batch norms, weights that cannot be watched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.contracts import InputRole
from mixbackend.execute.weights import constant_weights
from mixbackend.graph.copies import copy_module
from mixbackend.graph.describe import PlaceholderRole, describe
from mixbackend.graph.identity import Captured
from mixbackend.graph.trace import trace_graph
from mixbackend.select import tuner

aten = torch.ops.aten


def masked(x: torch.Tensor, weight: torch.Tensor) -> Any:
    """A mask that takes its form from an input, beside a weight."""
    return aten.mm(x, aten.mul(weight, 2.0)) * aten.triu(aten.ones_like(x))


def twice_masked(x: torch.Tensor, weight: torch.Tensor) -> Any:
    """Two of filled memory that are one, once they depend on nothing."""
    left, right = aten.mm(x, weight), aten.relu(x)
    return aten.add(aten.ones_like(left), left), aten.mul(aten.ones_like(right), right)


def normalized(x: torch.Tensor, weight: torch.Tensor) -> Any:
    images, kernel = aten.view(x, [1, 1, 4, 4]), aten.view(weight, [1, 1, 4, 4])
    ones, zeros = aten.view(weight, [-1])[:1], aten.view(weight, [-1])[1:2]
    found = aten.convolution(images, kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    return aten.native_batch_norm(found, ones, zeros, zeros, ones, False, 0.1, 1e-5)[0]


@pytest.mark.parametrize("function", [masked, twice_masked, normalized])
@pytest.mark.parametrize("weights", ["auto", "live", "unwatchable"])
def test_nodes_are_the_same(function: Any, weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if weights == "unwatchable":
        monkeypatch.setattr(constant_weights, "why_unwatchable", lambda: "it is a test")
    roles = {1: PlaceholderRole(InputRole.PARAMETER)}
    module, _ = trace_graph(function, [torch.randn(4, 4), torch.randn(4, 4)], roles=roles)
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]
    captured = Captured(module, "inference", {names[1]: roles[1]}, "graph")
    settings = {
        "backends": ["eager"],
        "cache": {"dir": str(tmp_path)},
        "weights": weights.replace("unwatchable", "auto"),
    }
    mixture = Mixture(load_config(settings))
    tuned = describe(*tuner.placeable(captured, mixture.environment(mixture.config))[:2], "tuned", {})
    run = mixture.compile_captured(copy_module(module), captured.phase, captured.roles)
    (placed,) = mixture.report().graphs
    assert [(node.name, node.op) for node in tuned.nodes] == [(node.name, node.op) for node in placed.graph.nodes]
    assert len(tuned.inputs) == len(placed.graph.inputs)
    del run
