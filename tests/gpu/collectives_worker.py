"""One of two ranks of ``test_gpu_collectives``, with a GPU each: steps with ``mode="reduce-overhead"`` beside eager's.

``tensor``: training of layers whose products are split among the ranks. ``functional``: inference with a gather, a sum
and a scatter. ``gloo``: the same by a group that cannot be recorded. ``fails``: every recording with collectives fails
on rank 1. ``moves``: on rank 1 weights move in the middle, and are recorded anew. ``alone``: rank 0 alone records.
Ranks that take part in a collective unequally often hang, and are ended after two minutes.
"""

from __future__ import annotations

import copy
import datetime
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as distributed
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import mixbackend
from mixbackend.execute.cuda_graphs.recording import RegionsOnce

STEPS, MOVES = 14, 10


class Block(nn.Module):
    """A residual block of two products."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.down(nn.functional.gelu(self.up(self.norm(value))))


class Exchanging(nn.Module):
    """A sum, and unless it is all that the group can do with tensors of GPUs a gather and a scatter, after products."""

    def __init__(self, group: distributed.ProcessGroup, sums_only: bool, width: int = 256) -> None:
        super().__init__()
        self.group, self.sums_only = group, sums_only
        self.first, self.second, self.third = (nn.Linear(width, width) for _ in range(3))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = functional.all_reduce(self.first(value).tanh(), "sum", self.group)
        if self.sums_only:
            return self.second(value).relu()
        value = functional.all_gather_tensor(self.second(value).tanh(), 0, self.group)
        return functional.reduce_scatter_tensor(self.third(value), "sum", 0, self.group).relu()


def broken(once: RegionsOnce) -> Any:
    """Records all of it, then fails."""
    original = RegionsOnce.__call__

    def call(self: RegionsOnce, inputs: list[Any]) -> Sequence[Any]:
        made = original(self, inputs)
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("planted")
        return made

    return call


def models(kind: str, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """Two equal models, one of which will be compiled."""
    torch.manual_seed(0)
    if kind in ("functional", "gloo"):
        group = distributed.group.WORLD if kind == "functional" else distributed.new_group(backend="gloo")
        assert group is not None
        model, twin = (Exchanging(group, kind == "gloo").to(device) for _ in range(2))
        twin.load_state_dict(model.state_dict())
        return model, twin
    blocks = nn.Sequential(*(Block() for _ in range(3))).to(device)
    mesh = init_device_mesh("cuda", (2,))
    both = blocks, copy.deepcopy(blocks)
    for each in both:
        for block in each:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return both


def move(model: nn.Module) -> None:
    """Equal weights in other memory."""
    for parameter in model.parameters():
        before = local(parameter).data_ptr()
        if isinstance(parameter.data, DTensor):
            parameter._local_tensor = local(parameter).clone()  # type: ignore[attr-defined]
        else:
            parameter.data = parameter.data.clone()
        assert local(parameter).data_ptr() != before


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank has."""
    return (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).detach()


def gradients(model: nn.Module) -> list[torch.Tensor]:
    """Of this rank."""
    return [local(parameter.grad) for parameter in model.parameters()]


def train(kind: str, rank: int, model: nn.Module, run: nn.Module, twin: nn.Module, device: torch.device) -> None:
    """Steps, or calls, each held against eager's."""
    trains = kind not in ("functional", "gloo")
    for step in range(STEPS):
        # Split products take the same values on all ranks.
        torch.manual_seed(step if trains else 100 * rank + step)
        value = torch.randn(64, 256, device=device)
        if kind == "moves" and rank == 1 and step == MOVES:
            move(model)
        with torch.set_grad_enabled(trains):
            results = [module(value) for module in (run, twin)]
        torch.testing.assert_close(*results, rtol=2e-3, atol=2e-4)
        if trains:
            for result in results:
                result.square().mean().backward()
            for mine, theirs in zip(gradients(model), gradients(twin), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=2e-3, atol=1e-5)
            model.zero_grad(set_to_none=True)
            twin.zero_grad(set_to_none=True)


def hold(kind: str, rank: int, events: Sequence[str]) -> None:
    """What was recorded, by the events."""
    described = [detail for detail in events if " regions in " in detail]
    blocked = [detail for detail in described if "c10d" in detail or "exchange" in detail]
    failed = [detail for detail in events if "recording failed" in detail]
    if kind == "alone" and rank == 1:
        assert not described, events
        return
    assert described, events
    assert bool(blocked) is (kind == "gloo"), events
    assert bool(failed) is (kind == "fails" and rank == 1), events
    if not failed:
        assert any(detail.startswith("recorded; ") for detail in events), events
    if not failed and not blocked:
        assert all(" in 1 CUDA graphs" in detail for detail in described), events


def main(kind: str, rank: int, port: str) -> None:
    """Be one rank."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    limit = datetime.timedelta(seconds=120)
    distributed.init_process_group("nccl", rank=rank, world_size=2, timeout=limit, device_id=device)
    model, twin = models(kind, device)
    if kind == "fails" and rank == 1:
        RegionsOnce.__call__ = broken(RegionsOnce)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        backend = mixbackend.auto({"cache": {"dir": folder}})
        mode = None if kind == "alone" and rank == 1 else "reduce-overhead"
        run = torch.compile(model, backend=backend, mode=mode)
        train(kind, rank, model, run, twin, device)
        events = [event.detail for event in backend.report().events if event.kind == "cuda_graphs"]
    print(*events, sep="\n")
    hold(kind, rank, events)
    print("equal to eager", flush=True)
    distributed.barrier(device_ids=[rank])
    # Graphs hold the communicator, and are still there: unless they are let go of, this never ends.
    distributed.destroy_process_group()
    assert run is not None


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
