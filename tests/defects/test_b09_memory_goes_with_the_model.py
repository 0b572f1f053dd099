"""What was made of a model's weights goes when the model goes; the report still says what was compiled."""

from __future__ import annotations

import gc

import pytest
import torch

import mixbackend


def large_tensors() -> int:
    """How many tensors of the size of the model's weight are alive."""
    gc.collect()
    return sum(
        type(item) in (torch.Tensor, torch.nn.Parameter) and item.numel() == 517 * 517 for item in gc.get_objects()
    )


class Scaled(torch.nn.Module):
    """Computes with a value that is made of its weight alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(517, 517), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ (self.weight * 2 + 1).t())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["codegen", "onednn", "onnxruntime", "inductor", "eager"])
def test_one_collection_frees_the_constants_of_dropped_models(name: str) -> None:
    if name == "onnxruntime":
        pytest.importorskip("onnxruntime")
    torch._dynamo.reset()
    backend = mixbackend.auto({"backends": sorted({name, "eager"})})
    for _ in range(2):
        model = Scaled()
        run = torch.compile(model, backend=backend)
        x = torch.randn(2, 517)
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-3)
        assert large_tensors() > 1
        del model, run
    assert large_tensors() == 0
    graphs = backend.report().to_dict()["graphs"]
    assert graphs and all(graph["regions"] for graph in graphs)
