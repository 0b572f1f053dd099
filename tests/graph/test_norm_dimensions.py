"""Norms of dimensions of size 1: stated with the shape of the kernels, whatever torch's own rule says."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import mixbackend
from mixbackend.graph.norm_dimensions import applies, count_from_the_front

norm = torch.ops.aten.linalg_vector_norm.default


def misstated(*dims: int) -> torch.fx.GraphModule:
    """A graph as torch 2.11 traces it: what the norm drops is still there, also in what is computed of it."""
    module = make_fx(lambda x: (norm(x, 2, list(dims)) * 2,), tracing_mode="fake")(torch.ones(2, 3, 1))
    for node in module.graph.nodes:
        if node.op == "call_function":
            with node.meta["val"].fake_mode:
                node.meta["val"] = torch.empty(2, 3, 1)
    return module


@pytest.mark.parametrize("dims", [(-1,), (-1, 0), (1, -1)], ids=str)
def test_shapes_are_stated_as_kernels_give_them(dims):
    module = misstated(*dims)
    assert applies(module)
    assert count_from_the_front(module) == 1
    x = torch.randn(2, 3, 1)
    expected = (norm(x, 2, dims) * 2,)
    torch.testing.assert_close(module(x), expected)
    (output,) = module.graph.find_nodes(op="output")
    assert output.args[0][0].meta["val"].shape == expected[0].shape
    (node,) = module.graph.find_nodes(op="call_function", target=norm)
    assert min(node.args[2]) >= 0
    assert not applies(module), "it was rewritten"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_programs_return_the_shapes_of_eager(grad, dynamic):
    def program(x):
        return torch.linalg.vector_norm(1 - torch.nn.functional.adaptive_avg_pool2d(x, 1), dim=-1) * 2

    torch._dynamo.reset()
    x = torch.randn(2, 1, 5, 6, requires_grad=grad)
    mixture = mixbackend.auto()
    mine = torch.compile(program, backend=mixture, dynamic=dynamic)(x)
    torch.testing.assert_close(mine, program(x))
    assert mixture.report().to_dict()["events"] == []
