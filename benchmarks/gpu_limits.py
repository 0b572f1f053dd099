"""Least milliseconds of the GPU benchmark's rows: a roofline, kernel by kernel, beside what was measured.

    python -m mixbackend.benchmarks.gpu_limits --tflops 790 --tb-per-s 4.3 --measured rows.jsonl

Place: a command of its own, beside ``gpu``; it needs no GPU. Input: the rows (``gpu_models``), rates of large products
and of a copy, what ``gpu`` measured. Output: a table in Markdown.
Method: the forward runs once on the processor. Of each matrix product, convolution and attention the operations are
counted, and the bytes of what it reads and writes, each tensor once and in 16 bits; it takes the longer of both at the
given rates. Whatever else there is (norms, activations, copies) is free, as if it were fused into its neighbours. In
training each has a gradient for its input and one for its weight, of as many operations and bytes again, but for what
reads an input of the model; the gradients of attention are five products for two. Weights are read in float32 once,
their gradients written, and an optimizer without state reads both and writes the weights. Attention that a model writes
out counts as its products, scores in memory.
Invariants: where attention is one operator, no implementation that keeps to these types takes less.
Non-goals: launches, and what a cache holds between two kernels.
Source of the model: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from mixbackend.benchmarks.gpu import best_of, names_of
from mixbackend.benchmarks.gpu_models import ROWS, GpuRow, Phase
from mixbackend.benchmarks.models.trees import tensors_in
from mixbackend.benchmarks.row_records import Part, merged, read
from mixbackend.contracts.torch_compat import EveryOperator

aten = torch.ops.aten
PRODUCTS, CONVOLUTIONS, ATTENTION, WEIGHTS = KINDS = ("products", "convolutions", "attention", "weights")
_ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu
_CLASSES: Mapping[Any, str] = {
    **dict.fromkeys((aten.mm, aten.addmm, aten.bmm, aten.baddbmm), PRODUCTS),
    aten.convolution: CONVOLUTIONS,
    _ATTENTION: ATTENTION,
}
_GRADIENTS: Mapping[str, float] = {ATTENTION: 2.5}
"""Operations of the gradients beside those of the forward, where they are not twice as many."""
_BYTES = 2
"""Of an element: float16, or bfloat16 under autocast."""
_WEIGHT_BYTES = 5 * 4
"""Of a parameter in a training step, in float32: read, its gradient written and read, read again and written."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Of a GPU: operations of large products and bytes of a copy, each a second."""

    flops: float
    bytes: float

    def seconds(self, work: Work) -> float:
        """The longer of both."""
        return max(work.flops / self.flops, work.bytes / self.bytes)


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel that there must be.

    Attributes:
        kind: class of kernels.
        flops, bytes: of a call of the model.
    """

    kind: str
    flops: float
    bytes: float


def work_of(row: GpuRow) -> list[Work]:
    """The kernels of a row's forward, in training with those of the backward and of the optimizer."""
    module, inputs = row.make()
    found = _forward(module.train(row.phase == "training"), inputs)
    if row.phase == "inference":
        return [work for work, _ in found]
    step = [_with_gradients(work, first) for work, first in found]
    elements = sum(parameter.numel() for parameter in module.parameters())
    return [*step, Work(WEIGHTS, 0.0, float(_WEIGHT_BYTES * elements))]


def _with_gradients(work: Work, first: bool) -> Work:
    times = 1.0 if first else _GRADIENTS.get(work.kind, 2.0)
    return Work(work.kind, work.flops * (1.0 + times), work.bytes * (2.0 if first else 3.0))


def _forward(module: nn.Module, inputs: tuple[Tensor, ...]) -> list[tuple[Work, bool]]:
    """Kernels of a forward, and whether each reads an input of the model."""
    counter, fused = _Counter(inputs), torch.backends.mha.get_fastpath_enabled()
    # Layers of attention as one operator would hide their products.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), counter:
            module(*inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
    return counter.found


class _Counter(EveryOperator):
    """Counts products, convolutions and attention.

    Args:
        inputs: of the model.
    """

    def __init__(self, inputs: tuple[Tensor, ...]) -> None:
        super().__init__(lambda operator, results: None)
        self.found: list[tuple[Work, bool]] = []
        self._inputs = set(map(_memory, inputs))

    def computed(self, operator: Any, arguments: Any, keywords: Any) -> Any:
        """Compute it, and count it."""
        result = operator(*arguments, **keywords)
        kind = _CLASSES.get(operator.overloadpacket)
        if kind is not None:
            made = result[0] if isinstance(result, tuple) else result
            given = arguments[:3] if kind == ATTENTION else (arguments, keywords)
            tensors = [*tensors_in(given), made]
            work = Work(kind, _operations(operator, arguments, keywords, result), _bytes(tensors))
            self.found.append((work, not self._inputs.isdisjoint(map(_memory, tensors))))
        return result


def _bytes(tensors: Sequence[Tensor]) -> float:
    return float(_BYTES * sum(map(torch.numel, tensors)))


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _operations(func: Any, args: Any, named: Mapping[str, Any], result: Any) -> float:
    if func.overloadpacket is not _ATTENTION:
        return float(flop_registry[func.overloadpacket](*args, **named, out_val=result))
    query, key, value = args[:3]
    causal = named.get("is_causal", args[4] if len(args) > 4 else False)
    pairs = query.shape[:-1].numel() * key.shape[-2] * (0.5 if causal else 1.0)
    return 2.0 * pairs * (query.shape[-1] + value.shape[-1])


@dataclass(frozen=True, slots=True)
class Limit:
    """The least milliseconds of a row.

    Attributes:
        row, phase: as in ``gpu_models``.
        arithmetic_ms: of all operations, as if no byte were moved.
        least_ms: kernel by kernel.
        bound_by_memory_ms: of it, those of kernels that wait for memory.
        by_kind: ``least_ms`` by class of kernels.
    """

    row: str
    phase: Phase
    arithmetic_ms: float
    least_ms: float
    bound_by_memory_ms: float
    by_kind: Mapping[str, float]


def limit_of(row: GpuRow, rates: Rates) -> Limit:
    """The limit of one row."""
    work = work_of(row)
    by_kind: dict[str, float] = {}
    for item in work:
        by_kind[item.kind] = by_kind.get(item.kind, 0.0) + 1e3 * rates.seconds(item)
    memory = (rates.seconds(item) for item in work if item.bytes / rates.bytes > item.flops / rates.flops)
    arithmetic_ms = 1e3 * sum(item.flops for item in work) / rates.flops
    return Limit(row.name, row.phase, arithmetic_ms, sum(by_kind.values()), 1e3 * sum(memory), by_kind)


def table(limits: Sequence[Limit], measured: Mapping[str, Part]) -> str:
    """In Markdown; ``measured`` has the records of ``gpu`` by row."""
    kinds = [kind for kind in KINDS if any(kind in item.by_kind for item in limits)]
    head = ["row", "arithmetic", "limit", "waits for memory", *kinds, "ours", "ours over limit", "inductor over limit"]
    lines = [head, ["---"] * len(head)]
    for item in limits:
        mine, theirs = (best_of(measured.get(item.row, {"ways": {}}), side) for side in ("ours", "inductor"))
        times = [
            item.arithmetic_ms,
            item.least_ms,
            item.bound_by_memory_ms,
            *(item.by_kind.get(kind, 0.0) for kind in kinds),
        ]
        ratios = [f"{time / item.least_ms:.2f}" if time else "" for time in (mine, theirs)]
        lines.append([item.row, *(f"{time:.3f}" for time in times), f"{mine:.3f}" if mine else "", *ratios])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="least milliseconds of whole models on a GPU")
    parser.add_argument("--tflops", type=float, required=True, help="of a large product in 16 bits")
    parser.add_argument("--tb-per-s", type=float, required=True, help="of a copy, read and written")
    parser.add_argument("--rows", type=names_of(ROWS), default=list(ROWS), help="names with commas between")
    parser.add_argument("--measured", type=Path, help="what mixbackend.benchmarks.gpu wrote")
    given = parser.parse_args(arguments)
    rates = Rates(1e12 * given.tflops, 1e12 * given.tb_per_s)
    measured = merged(read(given.measured)) if given.measured else {}
    print(table([limit_of(ROWS[name], rates) for name in given.rows], measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
