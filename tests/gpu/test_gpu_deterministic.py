"""``torch.use_deterministic_algorithms`` on a GPU: equal bits at every call; updates are left to eager or inductor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.gpu


class Scatters(nn.Module):
    """Rounded sums of many values in few places, and a convolution."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(17, 256), nn.LayerNorm(256)
        self.convolution = nn.Conv2d(16, 16, 3)

    def forward(self, places, rows, images):
        flat = places.flatten()
        added = rows.new_zeros(7, 256).index_add(0, flat % 7, rows)
        written = rows.new_zeros(7, 256).index_put((flat % 7,), rows, accumulate=True)
        along = rows.new_zeros(5, 256).scatter_add(0, (flat % 5)[:, None].expand(-1, 256), rows)
        value = self.norm(self.embedding(places)).square().mean() + added.sin().sum() + written.cos().sum()
        return value + along.tanh().sum() + torch.relu(self.convolution(images)).mean()


@pytest.fixture(autouse=True)
def _asked() -> Iterator[None]:
    # cuBLAS wants a variable of the environment before it starts; without it torch only warns so.
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_equal_bits_every_time(mixture, gpu, mode):
    object_ = mixture()
    model = Scatters().to(gpu)
    run = torch.compile(model, backend=object_, mode=mode)
    places, rows = torch.randint(0, 17, (128, 64), device=gpu), torch.randn(8192, 256, device=gpu, requires_grad=True)
    images = torch.randn(8, 16, 32, 32, device=gpu)
    results = []
    for _ in range(20):
        model.zero_grad()
        rows.grad = None
        loss = run(places, rows, images)
        loss.backward()
        results.append([item.clone() for item in (loss.detach(), rows.grad, *(p.grad for p in model.parameters()))])
    for later in results[1:]:
        assert all(map(torch.equal, later, results[0]))
    torch.testing.assert_close(results[0][0], model(places, rows, images).detach(), rtol=1e-3, atol=1e-3)
    graphs = object_.report().to_dict()["graphs"]
    owned = {(name, item["backend"]) for graph in graphs for item in graph["regions"] for name in item["nodes"]}
    updates = ("index_add", "index_put", "scatter_add", "embedding_dense_backward")
    assert not [pair for pair in owned if pair[0].startswith(updates) and pair[1] == "codegen"]
    assert not {backend for _, backend in owned} & {"cudnn", "cublaslt", "tensorrt"}
    reasons = {item["code"] for graph in graphs for item in graph["refusals"]}
    assert "deterministic" in reasons
