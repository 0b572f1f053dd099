"""Run by ``test_tuning_end_to_end``: tunes a small model, uses it again, and prints what happened."""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import nn

import mixbackend


def main() -> None:
    settings = json.loads(sys.argv[1])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)).eval()
    value = torch.randn(16, 32)
    answers = []
    for search in ({"mode": "measure", "budget_s": settings.pop("budget_s")}, {"mode": "estimate"}):
        torch._dynamo.reset()
        mixture = mixbackend.auto({**settings, "search": search})
        compiled = torch.compile(model, backend=mixture)
        start = time.perf_counter()
        with torch.no_grad():
            result = compiled(value)
            seconds = time.perf_counter() - start
            error = (result - model(value)).abs().max().item()
        answers.append({"report": mixture.report().to_dict(), "error": error, "seconds": seconds})
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
