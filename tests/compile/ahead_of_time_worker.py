"""A process that compiles a model ahead of time and saves it, or loads it and trains; for ``test_stored_graphs``.

Arguments: "save" or "load", the file, keys of a configuration as JSON. Says "as eager" at its end.
"""

from __future__ import annotations

import copy
import json
import sys

import torch
import torch._dynamo.config
from torch import nn

import mixbackend


class Network(nn.Module):
    """Torch saves functions of classes that are found by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Two layers."""
        return self.outer(nn.functional.gelu(self.inner(value)))


def main() -> None:
    step, path, keys = sys.argv[1:]
    torch._dynamo.config.enable_aot_compile = True
    torch.manual_seed(0)
    model = Network()
    value = torch.randn(3, 16)
    if step == "save":
        module = torch.compile(model, backend=mixbackend.auto(json.loads(keys)), fullgraph=True)
        compiled = module.forward.aot_compile(((value,), {}))
        compiled.save_compiled_function(path)
    else:
        with open(path, "rb") as file:
            compiled = torch.compiler.load_compiled_function(file)
    reference = copy.deepcopy(model)
    losses = [compiled(model, value).square().sum(), reference(value).square().sum()]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(*losses)
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    print("as eager")


if __name__ == "__main__":
    main()
