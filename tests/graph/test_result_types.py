"""Mixed precision: graphs state the types that eager's kernels return, and backends meet them at the first attempt."""

from __future__ import annotations

import copy
import operator

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.backends.codegen.backend import CodegenBackend
from mixbackend.backends.inductor.backend import InductorBackend
from mixbackend.graph.result_types import state_result_types
from mixbackend.graph.trace import trace_graph

aten = torch.ops.aten


class Normalised(nn.Module):
    """Every normalisation on halves, with float32 weights under autocast."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3)
        self.batch, self.group, self.layer = nn.BatchNorm2d(8), nn.GroupNorm(2, 8), nn.LayerNorm(8)

    def forward(self, image):
        image = self.batch(self.convolution(image)).relu()
        image = self.group(image.to(torch.bfloat16)).relu()
        return self.layer(image.mean((2, 3)).to(torch.bfloat16)).float().square().mean()


def traced(function, *inputs) -> torch.fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*inputs)


def stated(graph_module: torch.fx.GraphModule) -> list[torch.dtype]:
    """Types of the outputs, as the graph states them."""
    (output,) = graph_module.graph.find_nodes(op="output")
    return [node.meta["val"].dtype for node in output.args[0]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [CodegenBackend, InductorBackend])
def test_a_training_step_under_autocast_needs_no_repair(make_mixture, make):
    backend = make()
    if not backend.availability().available:
        pytest.skip(backend.availability().reason)
    mixture = make_mixture(backend, on_failure="repair")
    mine = Normalised()
    reference = copy.deepcopy(mine)
    image = torch.randn(4, 3, 12, 12)
    for module, run in ((mine, torch.compile(mine, backend=mixture)), (reference, reference)):
        with torch.autocast("cpu", torch.bfloat16):
            loss = run(image)
        loss.backward()
        module.loss = loss.detach()
    torch.testing.assert_close(mine.loss, reference.loss, rtol=1e-2, atol=1e-2)
    for one, other in zip(mine.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=5e-2, atol=5e-2)
    for one, other in zip(mine.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
    report = mixture.report().to_dict()
    assert [event for event in report["events"] if event["kind"] != "tuning"] == []
    owned = {
        name
        for graph in report["graphs"]
        for region in graph["regions"]
        if region["backend"] == backend.name
        for name in region["nodes"]
        if "norm" in name
    }
    forward = {"_native_batch_norm_legit_functional", "native_group_norm", "native_layer_norm"}
    backward = {"native_batch_norm_backward", "native_group_norm_backward", "native_layer_norm_backward"}
    assert owned == forward | backward


def test_what_reads_a_statistic_follows_it():
    def function(value, weight):
        _, mean, spread = aten.native_layer_norm(value, [4], weight, None, 1e-5)
        return aten.mul(mean, spread), aten.expand(mean, [3, 4]), aten._to_copy(spread, dtype=torch.float64)

    inputs = torch.randn(3, 4).bfloat16(), torch.ones(4)
    graph_module = traced(function, *inputs)
    state_result_types(graph_module)
    assert stated(graph_module) == [item.dtype for item in function(*inputs)]
    assert stated(graph_module) == [torch.float32, torch.float32, torch.float64]
    for node in graph_module.graph.nodes:
        if node.target is operator.getitem:
            assert node.meta["val"].dtype is node.args[0].meta["val"][node.args[1]].dtype


def test_a_graph_that_states_the_truth_is_left_alone():
    function = lambda value, weight: aten.native_layer_norm(value, [4], weight, None, 1e-5)[1:]  # noqa: E731
    graph_module = traced(function, torch.randn(3, 4), torch.ones(4))
    before = [node.meta.get("val") for node in graph_module.graph.nodes]
    assert state_result_types(graph_module) == 0
    assert all(node.meta.get("val") is kept for node, kept in zip(graph_module.graph.nodes, before, strict=True))


def test_every_described_graph_is_corrected():
    _, graph = trace_graph(
        lambda value, weight: aten.native_layer_norm(value, [4], weight, None, 1e-5)[1:],
        [torch.randn(3, 4).bfloat16(), torch.ones(4)],
    )
    (node,) = (node for node in graph.nodes if node.op == "aten.native_layer_norm.default")
    assert [meta.dtype for meta in node.outputs] == [torch.bfloat16, torch.float32, torch.float32]
