"""The model of the example; run at build time, it writes a package and fills the cache.

Usage: ``python model.py PACKAGE``.
"""

from __future__ import annotations

import sys

import torch

import mixbackend


def make() -> torch.nn.Module:
    """A small classifier with fixed weights, in place of yours."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 16, 3, 2, 1), torch.nn.BatchNorm2d(16), torch.nn.SiLU(), torch.nn.Flatten()]
    return torch.nn.Sequential(
        *layers, torch.nn.Linear(16 * 16 * 16, 64), torch.nn.GELU(), torch.nn.Linear(64, 10)
    ).eval()


def example(rows: int = 4) -> torch.Tensor:
    """Arguments of the model."""
    return torch.linspace(-1.0, 1.0, rows * 3 * 32 * 32).reshape(rows, 3, 32, 32)


def main() -> None:
    """Write the package, and compile for callers of ``torch.compile``."""
    rows = torch.export.Dim("rows", min=1, max=64)
    program = torch.export.export(make(), (example(),), dynamic_shapes=({0: rows},))
    print(mixbackend.export(program, sys.argv[1]))
    with torch.no_grad():
        torch.compile(make(), backend=mixbackend.auto({"select": "off"}))(example())


if __name__ == "__main__":
    main()
