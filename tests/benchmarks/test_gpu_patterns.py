"""What is timed on a GPU: its results come in the order in which regions give them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from mixbackend.benchmarks.kernels.gpu_patterns import PATTERNS
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.graph.regions import whole_region
from mixbackend.graph.trace import trace_graph


@pytest.mark.sampled(13)
@pytest.mark.parametrize("name", PATTERNS)
def test_results_are_in_the_order_of_a_region_s(name: str) -> None:
    with fresh_fake_mode():
        inputs = [torch.empty(value.shape, dtype=value.dtype) for value in PATTERNS[name].inputs(torch.float32)]
    graph_module, graph = trace_graph(PATTERNS[name].function, inputs)
    (output,) = graph_module.graph.find_nodes(op="output")
    returned: list[Any] = [node.name for node in tree_leaves(output.args)]
    assert [item.name for item in whole_region(graph_module, graph).outputs] == returned
