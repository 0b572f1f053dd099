"""One of two processes of ``test_distributed``: trains each way, in eager, in float64 and compiled, and compares."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))
from held_against_eager import Wrap, data, hold

import mixbackend

WIDTH = 32


class Block(nn.Module):
    """Pre-norm feed-forward block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.down(nn.functional.gelu(self.up(self.norm(value))))


def plain(dtype: torch.dtype) -> nn.Sequential:
    """The same weights on both ranks."""
    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(2)]).to(dtype)


def in_parallel(model: nn.Sequential, kind: str) -> nn.Module:
    """The model under DDP, FSDP2, or with its products split over the ranks."""
    if kind == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=1)
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for block in model:
            fully_shard(block)
        fully_shard(model)
        return model
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def gradients(model: nn.Module) -> list[torch.Tensor]:
    """Full gradients of all parameters."""
    found: list[Any] = [parameter.grad for parameter in model.parameters()]
    return [grad.full_tensor() if hasattr(grad, "full_tensor") else grad for grad in found]


def trained(wrap: Wrap, dtype: torch.dtype, kind: str, rank: int) -> list[torch.Tensor]:
    """Losses of three steps, and gradients."""
    model = in_parallel(plain(dtype), kind)
    run = wrap(model)
    # Ranks of tensor parallel compute of the same data, the others of their own.
    seed = 0 if kind == "tensor" else rank
    losses = []
    for step in range(3):
        loss = run(data(dtype, 8, WIDTH, seed=seed + 10 * step)).square().mean()
        loss.backward()
        losses.append(loss)
    return [*losses, *gradients(model)]


def pipelined(wrap: Wrap, dtype: torch.dtype, rank: int) -> list[torch.Tensor]:
    """Each rank has one block; gradients of its stage, and of the last one the result."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    block = plain(dtype)[rank]
    stage = PipelineStage(wrap(block), rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    results = []
    for step in range(2):
        values = (data(dtype, 8, WIDTH, seed=step),) if rank == 0 else ()
        target = {"target": data(dtype, 8, WIDTH, seed=9)} if rank == 1 else {}
        found = schedule.step(*values, **target)
        results += [found] if isinstance(found, torch.Tensor) else []
    return [*results, *gradients(block)]


def main(kind: str, rank: int, port: str) -> None:
    """Run the client three ways and compare."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    distributed.init_process_group("gloo", rank=rank, world_size=2)

    def client(wrap: Wrap, dtype: torch.dtype) -> list[torch.Tensor]:
        return pipelined(wrap, dtype, rank) if kind == "pipeline" else trained(wrap, dtype, kind, rank)

    hold(client, mixbackend.auto())
    print("equal to eager")
    # Both must be done with the other before either closes its connections.
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
