"""Strides: give a tensor the layout that eager would have given it.

Place: around the run functions of ``execute.region_executor``, for outputs with a layout that other code depends on.
Input: expected metas of the region's outputs. Output: functions from tensor to tensor, the same object if nothing has
to be done; a run function. Strides are compared only where the size is over 1 and the tensor is not empty.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mixbackend.contracts import CompiledRegion, Region, TensorMeta, hint_of, is_symbolic
from mixbackend.execute.region_sizes import sizes_reader
from mixbackend.execute.run_function import Run

Restride = Callable[[torch.Tensor], torch.Tensor]
Layout = Callable[[Sequence[Any]], Restride]
"""What has to be done to an output of the call with these inputs; asked before the call, which may clear them."""


def restrided(run: Run, places: Sequence[tuple[int, Layout]]) -> Run:
    """The same run function; its outputs at these places lie as eager's do."""
    if not places:
        return run

    def restriding(inputs: list[Any]) -> Sequence[Any]:
        wanted = [(place, layout(inputs)) for place, layout in places]
        outputs = list(run(inputs))
        for place, restride in wanted:
            outputs[place] = restride(outputs[place])
        return outputs

    return restriding


def restriders(region: Region, compiled: CompiledRegion) -> tuple[tuple[int, Layout], ...]:
    """Of a region's outputs, by their places: those that are not sure to lie as eager's do, where that matters."""
    found = []
    for index, output in enumerate(region.outputs):
        if not output.exact_stride or is_relied_upon(compiled, output.meta):
            continue
        layout = layout_of(region, output.meta)
        if layout is not None:
            found.append((index, layout))
    return tuple(found)


def is_relied_upon(compiled: CompiledRegion, meta: TensorMeta) -> bool:
    """Whether an output is passed on as it lies, since the backend promised that it lies so."""
    if compiled.strides == "contiguous":
        return meta.contiguous() and not meta.dynamic
    return compiled.strides == "as_traced"


def layout_of(region: Region, meta: TensorMeta) -> Layout | None:
    """How the strides of ``meta`` are enforced; ``None`` if any layout satisfies them.

    Where strides depend on sizes that no input shows, the order of dimensions is all that is kept.
    """
    if meta.rank == 0:
        return None
    if not any(map(is_symbolic, (*meta.shape, *meta.stride))):
        shape = tuple(int(size) for size in meta.shape)
        if 0 in shape or all(size == 1 for size in shape):
            return None
    if not any(map(is_symbolic, meta.stride)):
        enforce = functools.partial(_laid, tuple(int(step) for step in meta.stride))
        return lambda inputs: enforce
    read = sizes_reader(region, meta.stride)
    if read is not None:
        return lambda inputs: functools.partial(_laid, read(inputs))
    in_order = _in_order(meta)
    return None if in_order is None else lambda inputs: in_order


def _laid(stride: tuple[int, ...], tensor: torch.Tensor) -> torch.Tensor:
    actual = tensor.stride()
    if actual == stride or tensor.numel() == 0:
        return tensor
    relevant = zip(tensor.shape, actual, stride, strict=True)
    same = all(step == wanted for size, step, wanted in relevant if size > 1)
    return tensor if same else _copy(tensor, stride)


def _in_order(meta: TensorMeta) -> Restride | None:
    """Only the order of dimensions is kept: expanded and gapped layouts stay as they come."""
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
