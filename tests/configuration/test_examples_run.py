"""The commented configurations of ``examples/`` on a model, end to end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.cost.switches import SWITCH

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


class Attention(nn.Module):
    """One head; named so that the example's rules find it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / 4.0
        return scores.softmax(-1) @ self.value(x)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm, self.output = Attention(), nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.output(nn.functional.gelu(self.attention(x))))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layer:
            x = layer(x)
        return x


class TinyEmbeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(50, 16), nn.LayerNorm(16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.norm(self.words(tokens) * 2.0)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings, self.encoder = TinyEmbeddings(), Encoder()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.embeddings(tokens))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_a_model_with_eagers_results(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # one example keeps its cache beside the checkout
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(SWITCH, "0")
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, tokens = Model().eval(), torch.randint(0, 50, (2, 12))
    config = load_config(path)
    mixture = Mixture(config)
    with torch.no_grad():
        expected = model(tokens)
        torch.testing.assert_close(torch.compile(model, backend=mixture)(tokens), expected)
    report = mixture.report()
    (graph,) = report.to_dict()["graphs"]
    owned = [name for region in graph["regions"] for name in region["nodes"]]
    assert len(owned) == len(set(owned)) == graph["nodes"]
    if config.backends is not None:
        assert {region["backend"] for region in graph["regions"]} <= {*config.backends, "eager"}
    # The rule is about modules of that class; the normalisation inside is of another.
    embeddings = [region for region in graph["regions"] if "embeddings" in region["modules"]]
    if any(rule.forbid == "inductor" for rule in config.rules):
        assert embeddings and all(region["backend"] != "inductor" for region in embeddings)
        # This model has no half-precision convolution; the other two rules find what they are about.
        (warning,) = report.warnings()
        assert "aten.convolution" in warning
