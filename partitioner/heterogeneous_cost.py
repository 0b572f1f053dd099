"""Costs of graphs that work on an accelerator and on the processor: each op by the device of its tensors.

Place: around the cost models of both devices, for graphs that have tensors on both (host-side scalars, indices, losses
that are read). Input: the two models, and what copying between the devices takes (``DeviceModel.transfer``).
Output: a ``CostModel`` in which borders between the devices have a price: an op that reads tensors of one device and
makes one on the other is a transfer, and costs what the copy takes on any backend.
Invariants: pure; tensors without dimensions are passed to kernels by value, and make no op a transfer.
Non-goals: choosing devices. Where a tensor is, is the user's word.
"""

from __future__ import annotations

from dataclasses import dataclass

from mixbackend.contracts import CostModel, DeviceModel, Estimate, OpGraph, OpView, TensorMeta, ValueMeta
from mixbackend.partitioner.work import stored_bytes


@dataclass(frozen=True)
class HeterogeneousCosts(CostModel):
    """See the module's docstring.

    Attributes:
        accelerator, processor: costs on each of them.
        device: the accelerator.
        processor_share: how much a second of the processor counts: all of it where the accelerator waits.
        on_processor: names of backends that work there alone: entering these costs what it costs there.
    """

    accelerator: CostModel
    processor: CostModel
    device: DeviceModel
    processor_share: float
    on_processor: frozenset[str]

    def op(self, backend: str, view: OpView) -> Estimate:
        """Of the device that the op works on; a transfer costs its copy, beyond what reading and writing count for."""
        here = _is_on_processor(view.output_tensors)
        if _is_on_processor(_large(view)) not in (here, None):
            moved = max((stored_bytes(meta) for meta in _large(view)), default=0)
            counted = sum(self.read(backend, meta) for meta in _large(view))
            counted += sum(self.write(backend, meta) for meta in view.output_tensors)
            return Estimate(max(self.device.transfer(moved) - counted, 0.0), self.device.provenance)
        if not here:
            return self.accelerator.op(backend, view)
        found = self.processor.op(backend, view)
        return Estimate(self.processor_share * found.seconds, found.provenance)

    def read(self, backend: str, meta: TensorMeta) -> float:
        """From the memory that the tensor is in."""
        if _is_remote(meta):
            return self.accelerator.read(backend, meta)
        return self.processor_share * self.processor.read(backend, meta)

    def weight(self, backend: str, meta: TensorMeta) -> float:
        """From the memory that the weight is in."""
        if _is_remote(meta):
            return self.accelerator.weight(backend, meta)
        return self.processor_share * self.processor.weight(backend, meta)

    def write(self, backend: str, meta: TensorMeta) -> float:
        """Into the memory that the tensor is in."""
        if _is_remote(meta):
            return self.accelerator.write(backend, meta)
        return self.processor_share * self.processor.write(backend, meta)

    def crossing(self, producer: str, consumer: str, meta: TensorMeta) -> float:
        """Between backends, on the device that the tensor is on: what changes the device is an op."""
        if _is_remote(meta):
            return self.accelerator.crossing(producer, consumer, meta)
        return self.processor_share * self.processor.crossing(producer, consumer, meta)

    def entry(self, backend: str) -> float:
        """On the processor for backends that work there alone."""
        if backend in self.on_processor:
            return self.processor_share * self.processor.entry(backend)
        return self.accelerator.entry(backend)

    def switch(self, backend: str) -> float:
        """Of pools of threads, which are the processor's."""
        return self.processor_share * self.processor.switch(backend)


def is_heterogeneous(graph: OpGraph) -> bool:
    """Whether a graph has tensors both on the processor and elsewhere."""
    metas: list[ValueMeta] = [item.meta for item in graph.inputs]
    metas += [meta for node in graph.nodes for meta in node.outputs]
    return len({_is_remote(meta) for meta in metas if isinstance(meta, TensorMeta)}) == 2


def _is_remote(meta: TensorMeta) -> bool:
    return meta.device.type not in ("cpu", "meta")


def _is_on_processor(metas: tuple[TensorMeta, ...]) -> bool | None:
    """Whether all of them are; ``None`` if there are none."""
    return None if not metas else not any(map(_is_remote, metas))


def _large(view: OpView) -> tuple[TensorMeta, ...]:
    """What an op reads, without numbers that only happen to be tensors, unless there is nothing else."""
    sized = tuple(meta for meta in view.input_tensors if meta.rank)
    return sized or view.input_tensors
