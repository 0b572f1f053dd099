"""One of two processes of ``test_distributed``: trains a small model compiled and in eager, and compares."""

from __future__ import annotations

import copy
import os
import sys

import torch
import torch.distributed as distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config


class Block(nn.Module):
    """Pre-norm feed-forward block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.down(nn.functional.gelu(self.up(self.norm(value))))


def wrapped(model: nn.Module, kind: str) -> nn.Module:
    """The model under DDP, or its blocks and itself under FSDP2."""
    if kind == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=1)
    from torch.distributed.fsdp import fully_shard

    for block in model:
        fully_shard(block)
    fully_shard(model)
    return model


def gradients(model: nn.Module) -> list[torch.Tensor]:
    """Full gradients of all parameters."""
    found = [parameter.grad for parameter in model.parameters()]
    return [grad.full_tensor() if hasattr(grad, "full_tensor") else grad for grad in found]


def main(kind: str, rank: int, port: str, folder: str) -> None:
    """Train one step each way and compare."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    plain = nn.Sequential(*[Block(64) for _ in range(3)])
    eager, compiled = wrapped(copy.deepcopy(plain), kind), wrapped(copy.deepcopy(plain), kind)
    names = ["onnxruntime", "eager"]
    mixture = Mixture(load_config({"backends": names, "cache": {"dir": f"{folder}/cache"}, "on_failure": "raise"}))
    run = torch.compile(compiled, backend=mixture)
    torch.manual_seed(rank)
    value = torch.randn(8, 64)
    for step in range(2):
        losses = [model(value + step).square().mean() for model in (run, eager)]
        torch.testing.assert_close(*losses)
        for loss in losses:
            loss.backward()
    for mine, theirs in zip(gradients(compiled), gradients(eager), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    graphs = mixture.report().to_dict()["graphs"]
    assert graphs, "nothing was compiled"
    assert not mixture.report().events
    print(f"{len(graphs)} graphs, equal to eager")
    # Both must be done with the other before either closes its connections.
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
