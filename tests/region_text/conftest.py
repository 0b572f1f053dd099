"""Small regions for the tests of the region text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.contracts import InputRole, RegionInput, RegionOutput, TensorMeta
from mixbackend.contracts.describe_op import value_meta
from mixbackend.contracts.region_text import write_region_text


def trace(function: Callable[..., Any], inputs: Sequence[Any], dynamic: bool = False) -> torch.fx.GraphModule:
    """A function as an ATen graph."""
    mode = "symbolic" if dynamic else "fake"
    return make_fx(function, tracing_mode=mode, _allow_non_fake_inputs=True)(*inputs)


def write(graph_module: torch.fx.GraphModule, role: InputRole = InputRole.ACTIVATION, **options: Any) -> str:
    """Text of a traced graph."""
    inputs = [
        RegionInput(node.name, value_meta(node.meta["val"]), role)
        for node in graph_module.graph.find_nodes(op="placeholder")
    ]
    outputs = []
    for node in graph_module.graph.output_node().args[0]:
        meta = value_meta(node.meta["val"])
        assert isinstance(meta, TensorMeta)
        outputs.append(RegionOutput(node.name, meta))
    return write_region_text(graph_module, inputs, outputs, "inference", **options)


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)
