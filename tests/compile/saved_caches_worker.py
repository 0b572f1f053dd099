"""A process that compiles a training step and saves torch's caches, or loads them first: (save | load) FILE CONFIG."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch._dynamo.utils import counters

import mixbackend


def main() -> None:
    step, file, config = sys.argv[1:]
    backend = mixbackend.auto(json.loads(config))
    loaded = torch.compiler.load_cache_artifacts(Path(file).read_bytes()) if step == "load" else None
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.GELU(), torch.nn.LayerNorm(24))
    inputs = torch.randn(5, 16)
    result = torch.compile(model, backend=backend)(inputs)
    result.sin().sum().backward()
    gradient, model[0].weight.grad = model[0].weight.grad, None
    model(inputs).sin().sum().backward()
    torch.testing.assert_close(result, model(inputs))
    torch.testing.assert_close(gradient, model[0].weight.grad)
    if step == "save":
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None
        Path(file).write_bytes(saved[0])
        loaded = saved[1]
    graphs = backend.report().to_dict()["graphs"]
    cached = [region["cached"] for graph in graphs for region in graph["regions"] if region["backend"] == "codegen"]
    kinds = sorted(loaded.artifacts) if loaded else []
    print(json.dumps({"cached": cached, "kinds": kinds, "hits": counters["aot_autograd"]["autograd_cache_hit"]}))


if __name__ == "__main__":
    main()
