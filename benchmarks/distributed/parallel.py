"""A case on the ranks of a job: spread, compiled as its users compile it, and one training step of it.

Place: between ``cases`` and ``rank``. Input: a case, the place of this rank, what compiles a module. Output:
``Training``, with a ``step`` of forward, loss, backward and plain SGD.
How: whole models under DDP; decoders layer by layer with ``fullgraph``, before FSDP2 wraps the compiled layers, after
DTensor split their products, as trainers do. With activation checkpointing (FSDP2) a layer is checkpointed inside what
is compiled. On one rank the same without anything to share: what scaling is counted from.
Invariants: the learning rate is so small that every step of every peer computes the gradients of the first one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as distributed
from torch import Tensor, nn

from mixbackend.benchmarks.distributed.cases import MICROBATCHES, Batch, Case
from mixbackend.benchmarks.distributed.llama import Checkpointed, Decoder, next_tokens_loss

_LEARNING_RATE = 1e-9

Compile = Callable[[nn.Module, bool], nn.Module]
"""A module, and whether it must be one graph, to the compiled one."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands.

    Attributes:
        rank, ranks: in the job.
        device: of its tensors; on GPUs bfloat16 is computed, on processors float32.
    """

    rank: int
    ranks: int
    device: torch.device

    @property
    def on_gpu(self) -> bool:
        """Whether tensors are on a GPU."""
        return self.device.type == "cuda"


@dataclass(frozen=True, slots=True)
class Training:
    """A spread module, and its step: ``step()`` returns the loss, or ``None`` on a rank that does not compute it."""

    module: nn.Module
    step: Callable[[], Tensor | None]


def training(case: Case, place: Place, compiled: Compile) -> Training:
    """Spread and compile a case."""
    module = case.module(place.device)
    batch = case.batch(place.rank, place.device)
    build = {"ddp": _ddp, "fsdp2": _fsdp2, "tensor": _tensor, "pipeline": _pipeline}[case.way]
    return build(module, batch, place, compiled)


def _ddp(module: nn.Module, batch: Batch, place: Place, compiled: Compile) -> Training:
    if place.ranks > 1:
        from torch.nn.parallel import DistributedDataParallel

        module = DistributedDataParallel(module, device_ids=[place.device.index] if place.on_gpu else None)
    run = compiled(module, False)

    def loss() -> Tensor:
        with _autocast(place):
            return run(*batch)

    return Training(module, _step(module, loss))


def _autocast(place: Place) -> AbstractContextManager[Any]:
    return torch.autocast("cuda", torch.bfloat16) if place.on_gpu else contextlib.nullcontext()


def _fsdp2(module: nn.Module, batch: Batch, place: Place, compiled: Compile) -> Training:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    decoder = cast(Decoder, module)
    half = torch.bfloat16 if place.on_gpu else None
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    for name, layer in decoder.layers.items():
        decoder.layers[name] = compiled(Checkpointed(layer), True)
        fully_shard(decoder.layers[name], mp_policy=policy)
    fully_shard(decoder, mp_policy=policy)
    return Training(decoder, _step(decoder, lambda: next_tokens_loss(decoder(*batch), batch[0])))


def _tensor(module: nn.Module, batch: Batch, place: Place, compiled: Compile) -> Training:
    decoder = cast(Decoder, module.to(torch.bfloat16 if place.on_gpu else torch.float32))
    if place.ranks > 1:
        _split_products(decoder, place)
    for name, layer in decoder.layers.items():
        decoder.layers[name] = compiled(layer, True)
    return Training(decoder, _step(decoder, lambda: next_tokens_loss(decoder(*batch), batch[0])))


def _split_products(decoder: Decoder, place: Place) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(place.device.type, (place.ranks,))
    # One tensor for all products of the same values: their gradients are added before they are reduced.
    everywhere: dict[str, Any] = {"hidden_states": Replicate()}
    plan: dict[str, Any] = {
        "self_attn": PrepareModuleInput(input_kwarg_layouts=everywhere, desired_input_kwarg_layouts=everywhere),
        "mlp": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)),
        **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
        **{f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")},
        **{name: RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")},
    }
    for layer in decoder.layers.values():
        parallelize_module(layer, mesh, plan)


def _pipeline(module: nn.Module, batch: Batch, place: Place, compiled: Compile) -> Training:
    decoder = cast(Decoder, module.to(torch.bfloat16 if place.on_gpu else torch.float32))
    decoder.keep_stage(place.rank, place.ranks)
    for name, layer in decoder.layers.items():
        decoder.layers[name] = compiled(layer, True)
    if place.ranks == 1:
        return Training(decoder, _in_microbatches(decoder, batch[0]))
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stage = PipelineStage(decoder, place.rank, place.ranks, place.device)
    schedule = Schedule1F1B(stage, n_microbatches=MICROBATCHES, loss_fn=next_tokens_loss)
    optimizer = _optimizer(decoder)

    def step() -> Tensor | None:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        values = batch if place.rank == 0 else ()
        wanted: dict[str, Any] = {"target": batch[0], "losses": losses} if place.rank == place.ranks - 1 else {}
        schedule.step(*values, **wanted)
        optimizer.step()
        return torch.stack(losses).mean().detach() if losses else None

    return Training(decoder, step)


def _in_microbatches(decoder: Decoder, ids: Tensor) -> Callable[[], Tensor]:
    optimizer = _optimizer(decoder)

    def step() -> Tensor:
        optimizer.zero_grad()
        losses = []
        for part in ids.chunk(MICROBATCHES):
            loss = next_tokens_loss(decoder(part), part) / MICROBATCHES
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        return torch.stack(losses).sum()

    return step


def _step(module: nn.Module, loss_of: Callable[[], Tensor]) -> Callable[[], Tensor]:
    optimizer = _optimizer(module)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _optimizer(module: nn.Module) -> torch.optim.Optimizer:
    # One update of many tensors takes either distributed ones or plain ones.
    kinds: dict[type, list[nn.Parameter]] = {}
    for parameter in module.parameters():
        kinds.setdefault(type(parameter.data), []).append(parameter)
    return torch.optim.SGD([{"params": group} for group in kinds.values()], lr=_LEARNING_RATE)


def reference(case: Case, place: Place) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients by one process in float32, without any of this: each rank's batch in turn, averaged."""
    module = case.module(place.device)
    shards = 1 if case.shares_batch else place.ranks
    total = 0.0
    with _full_float32():
        for shard in range(shards):
            for part in _parts(case, case.batch(shard, place.device)):
                loss = _plain_loss(case, module, part) / (shards * (MICROBATCHES if case.way == "pipeline" else 1))
                loss.backward()
                total += float(loss.detach())
    return total, {name: cast(Tensor, value.grad) for name, value in module.named_parameters()}


def _parts(case: Case, batch: Batch) -> list[Batch]:
    return [(part,) for part in batch[0].chunk(MICROBATCHES)] if case.way == "pipeline" else [batch]


def _plain_loss(case: Case, module: nn.Module, batch: Batch) -> Tensor:
    return module(*batch) if case.way == "ddp" else next_tokens_loss(module(*batch), batch[0])


@contextlib.contextmanager
def _full_float32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def barrier(place: Place) -> None:
    """Wait for all ranks, and for this one's device."""
    synchronise(place)
    if place.on_gpu:
        distributed.barrier(device_ids=[place.device.index])
    else:
        distributed.barrier()


def synchronise(place: Place) -> None:
    """Wait for what was given to the device."""
    if place.on_gpu:
        torch.cuda.synchronize(place.device)
