"""The installed package is found, and a region goes through it."""

from __future__ import annotations

from importlib.metadata import entry_points

import torch

from mixbackend.compile.replay import make_inputs
from mixbackend.contracts import Backend, Supported
from mixbackend.graph.trace import trace_region


def piece(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(torch.addmm(bias, x, weight))


def test_entry_point_leads_to_a_backend_that_works() -> None:
    (entry,) = entry_points(group="mixbackend.backends", name="openvino")
    backend = entry.load()()
    assert isinstance(backend, Backend) and backend.availability().available
    region = trace_region(piece, [torch.randn(4, 8), torch.randn(8, 16), torch.randn(16)])
    inputs = make_inputs(region)
    assert all(isinstance(backend.judge(view), Supported) for view in region.views)
    (result,), (expected,) = backend.compile(region).run(inputs), region.graph_module.forward(*inputs)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
