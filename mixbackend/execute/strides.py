"""Strides: give a tensor the layout that eager would have given it.

Place: around the run functions of ``execute.region_executor``, for outputs whose layout somebody depends on.
Input: expected metas of the region's outputs. Output: functions from tensor to tensor, the same object if nothing has
to be done; a run function. Strides are compared only where the size is over 1 and the tensor is not empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mixbackend.contracts import CompiledRegion, Region, TensorMeta, hint_of, is_symbolic
from mixbackend.execute.run_function import Run

Restride = Callable[[torch.Tensor], torch.Tensor]


def restrided(run: Run, places: Sequence[tuple[int, Restride]]) -> Run:
    """The same run function; its outputs at these places lie as eager's do."""
    if not places:
        return run

    def restriding(inputs: list[Any]) -> Sequence[Any]:
        outputs = list(run(inputs))
        for place, restride in places:
            outputs[place] = restride(outputs[place])
        return outputs

    return restriding


def restriders(region: Region, compiled: CompiledRegion) -> tuple[tuple[int, Restride], ...]:
    """Of a region's outputs, by their places: those that are not sure to lie as eager's do, where that matters."""
    found = []
    for index, output in enumerate(region.outputs):
        if not output.exact_stride or is_relied_upon(compiled, output.meta):
            continue
        enforce = restrider(output.meta)
        if enforce is not None:
            found.append((index, enforce))
    return tuple(found)


def is_relied_upon(compiled: CompiledRegion, meta: TensorMeta) -> bool:
    """Whether an output is passed on as it lies, since the backend promised that it lies so."""
    if compiled.strides == "contiguous":
        return meta.contiguous() and not meta.dynamic
    return compiled.strides == "as_traced"


def restrider(meta: TensorMeta) -> Restride | None:
    """A function that enforces the strides of ``meta``; ``None`` if any layout satisfies it."""
    if meta.rank == 0:
        return None
    if not any(is_symbolic(size) for size in (*meta.shape, *meta.stride)):
        return _static(tuple(int(size) for size in meta.shape), tuple(int(step) for step in meta.stride))
    return _dynamic(meta)


def _static(shape: tuple[int, ...], stride: tuple[int, ...]) -> Restride | None:
    relevant = tuple(index for index, size in enumerate(shape) if size > 1)
    if not relevant or 0 in shape:
        return None

    def enforce(tensor: torch.Tensor) -> torch.Tensor:
        actual = tensor.stride()
        if actual == stride or all(actual[index] == stride[index] for index in relevant):
            return tensor
        return _copy(tensor, stride)

    return enforce


def _dynamic(meta: TensorMeta) -> Restride | None:
    """Only the order of dimensions is kept where sizes are symbolic: expanded and gapped layouts stay as they come."""
    hints = tuple(hint_of(step) for step in meta.stride)
    if not _dense(tuple(hint_of(size) for size in meta.shape), hints):
        return None
    order = sorted(range(meta.rank), key=lambda index: hints[index])

    def enforce(tensor: torch.Tensor) -> torch.Tensor:
        shape = tensor.shape
        expected = [0] * len(shape)
        step = 1
        for index in order:
            expected[index] = step
            step *= max(shape[index], 1)
        actual = tensor.stride()
        if step <= 1 or all(actual[index] == expected[index] for index in order if shape[index] > 1):
            return tensor
        return tensor if tensor.numel() == 0 else _copy(tensor, tuple(expected))

    return enforce


def _dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    step = 1
    for index in sorted(range(len(shape)), key=lambda position: stride[position]):
        if shape[index] > 1:
            if stride[index] != step:
                return False
            step *= shape[index]
    return True


def _copy(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    expanded = [index for index, step in enumerate(stride) if step == 0 and tensor.shape[index] > 1]
    source = tensor
    for index in expanded:
        source = source.narrow(index, 0, 1)
    result = torch.empty_strided(source.shape, stride, dtype=tensor.dtype, device=tensor.device)
    result.copy_(source)
    return result.expand(tensor.shape) if expanded else result
