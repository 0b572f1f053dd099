"""One of two processes of ``test_distributed``: trains a small model compiled and in eager, and compares.

``ddp``: the ranks' machines have other costs, so that alone they would place graphs otherwise; first calls run side by
side. ``fsdp2``: on rank 1 a backend compiles nothing that it has claimed.
"""

from __future__ import annotations

import copy
import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))
from flat_costs import FlatCosts

from mixbackend.backends.onnxruntime import OnnxRuntimeBackend
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.cost import costs as costs_module
from mixbackend.reporting.events import ORDINARY


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


class Timed:
    """A mixture whose compilations are timed."""

    def __init__(self, mixture: Mixture) -> None:
        self.mixture, self.seconds = mixture, list[float]()

    def __call__(self, graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        begin = time.perf_counter()
        compiled = self.mixture(graph_module, inputs)
        self.seconds.append(time.perf_counter() - begin)
        return compiled


def train(compiled: nn.Module, eager: nn.Module, backend: Timed, rank: int) -> None:
    """Two steps each way: losses and gradients agree."""
    run = torch.compile(compiled, backend=backend)
    torch.manual_seed(rank)
    value = torch.randn(8, 64)
    for step in range(2):
        losses = [model(value + step).square().mean() for model in (run, eager)]
        torch.testing.assert_close(*losses)
        for loss in losses:
            loss.backward()
    for mine, theirs in zip(gradients(compiled), gradients(eager), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def told(backend: Timed) -> dict[str, Any]:
    """What a rank says of itself to the others."""
    report = backend.mixture.report()
    regions = [[(item["backend"], item["ops"]) for item in graph["regions"]] for graph in report.to_dict()["graphs"]]
    waits = [re.search(r"(?:after|within) ([\d.]+) s", event.detail) for event in report.events]
    return {
        "regions": regions,
        "waits": [float(found[1]) for found in waits if found is not None],
        "follows": sum("does what rank" in event.detail for event in report.events),
        "trouble": [(event.kind, event.backend) for event in report.events if event.kind not in ORDINARY],
        "seconds": backend.seconds,
    }


def hold(kind: str, ranks: Sequence[dict[str, Any]]) -> None:
    """Both ran one program; of a backend that failed on rank 1, rank 0 knows nothing; nobody waited for long."""
    first, second = ranks
    assert first["regions"], "nothing was compiled"
    assert first["trouble"] == []
    if kind == "ddp":
        assert first["regions"] == second["regions"]
        assert second["trouble"] == []
    else:
        owners = [{backend for graph in rank["regions"] for backend, _ in graph} for rank in ranks]
        assert "onnxruntime" in owners[0] and owners[1] == {"eager"}, owners
        assert set(second["trouble"]) == {("quarantine", "onnxruntime")}
    assert first["follows"] + second["follows"] > 0, "nobody was second"
    for rank, other in ((first, second), (second, first)):
        assert max(rank["waits"], default=0.0) < max(other["seconds"]), ranks


def main(kind: str, rank: int, port: str, folder: str) -> None:
    """Train, and compare with eager and with the other rank."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    plain = nn.Sequential(*[Block(64) for _ in range(3)])
    eager, compiled = wrapped(copy.deepcopy(plain), kind), wrapped(copy.deepcopy(plain), kind)
    cheapest = "eager" if kind == "ddp" and rank == 1 else "onnxruntime"
    costs = FlatCosts(seconds={cheapest: 1e-9}, other_s=1e-3)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(costs_module, "cost_model", lambda *_, **__: costs))
        if kind == "fsdp2" and rank == 1:
            fault = RuntimeError("planted")
            stack.enter_context(mock.patch.object(OnnxRuntimeBackend, "compile", side_effect=fault))
        cache = {"dir": f"{folder}/cache of rank {rank}"}
        backend = Timed(Mixture(load_config({"backends": ["onnxruntime", "eager"], "cache": cache})))
        train(compiled, eager, backend, rank)
    ranks: list[Any] = [None, None]
    distributed.all_gather_object(ranks, told(backend))
    hold(kind, ranks)
    print(f"{len(ranks[rank]['regions'])} graphs, waits of {ranks[rank]['waits']} s, equal to eager")
    # Both must be done with the other before either closes its connections.
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
