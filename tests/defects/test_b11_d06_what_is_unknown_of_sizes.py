"""B11, D6: of the lengths of jagged tensors nothing is known, and a difference of sizes may be negative."""

from __future__ import annotations

import torch

import mixbackend
from mixbackend.contracts import Condition, SymbolicSize, known
from mixbackend.graph.trace import trace_graph


def test_jagged_tensors_are_placed():
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(8, 8)
    rules = [{"match": {}, "prefer": "codegen", "factor": 1e-6}]
    mixture = mixbackend.auto({"backends": ["codegen", "eager"], "rules": rules})
    torch._dynamo.reset()

    def function(value):
        return torch.relu(layer(value)) * 2

    compiled = torch.compile(function, backend=mixture)
    with torch.no_grad():
        for lengths in ((3, 5), (2, 9, 1)):
            rows = [torch.randn(length, 8, generator=generator) for length in lengths]
            value = torch.nested.nested_tensor(rows, layout=torch.jagged)
            for made, wanted in zip(compiled(value).unbind(), function(value).unbind(), strict=True):
                torch.testing.assert_close(made, wanted)
    assert not [event for event in mixture.report().events if event.kind not in ("threads", "tuning", "recompile")]
    assert "codegen" in {item.backend for graph in mixture.report().graphs for item in graph.plan.regions}


def test_a_difference_of_sizes_may_be_negative():
    def function(value):
        return value + (value.shape[0] - 10)

    _, graph = trace_graph(function, [torch.randn(13, 4)], dynamic=True)
    found = [item for node in graph.nodes for item in node.outputs if isinstance(item, SymbolicSize)]
    (difference,) = [item for item in found if str(item.expression).endswith("- 10")]
    assert difference.hint == 3
    assert known(Condition(difference, "at_least", 0)) == "unknown"
    assert known(Condition(difference, "equal", -3)) == "unknown"
    assert known(Condition(difference, "at_least", -10)) == "yes"
    lowest = difference.lower
    assert known(Condition(difference, "equal", lowest)) == "unknown"
    assert known(Condition(difference, "equal", lowest - 1)) == "no"
