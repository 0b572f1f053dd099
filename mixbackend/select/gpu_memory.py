"""GPU memory: whether other programs of a graph fit beside the one that runs.

Place: below ``comparison_gpu`` and ``live.gpu_challengers``. Input: a graph, the values of a call. Output: bytes, and
why something does not fit, in words.
Units: bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mixbackend.contracts import OpGraph, TensorMeta
from mixbackend.execute.state_restore import Changes

USABLE = 0.9
"""Of the free memory: libraries take some for themselves."""


def why_too_large(graph: OpGraph, changes: Changes, values: Sequence[Any], device: int, others: int) -> str:
    """Why so many other programs of a graph may not fit; empty if they do.

    Args:
        graph: that all of them run.
        changes: what a call changes, which is copied.
        values: inputs of a call.
        device: number of the GPU.
        others: programs at once; in inference each may hold its weights once more.
    """
    held = sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
    constants = held * others if graph.phase == "inference" else 0
    copies = sum(values[place].nbytes for place in changes.places)
    needed, free = working_bytes(graph) + constants + copies, free_bytes(device)
    if needed <= USABLE * free:
        return ""
    return f"it may take {needed / 2**20:.0f} MiB on the GPU, of which {free / 2**20:.0f} MiB are free"


def working_bytes(graph: OpGraph) -> int:
    """Most bytes that results have at once if each op writes its own to memory; what compilers fuse takes less."""
    root: dict[str, str] = {}
    last: dict[str, int] = {}
    for place, node in enumerate(graph.nodes):
        alias = node.aliased()
        root[node.name] = node.name if alias is None else root.get(alias, alias)
        last[root[node.name]] = place
        last.update((root.get(name, name), place) for name in node.references())
    last.update((root.get(name, name), len(graph.nodes)) for name in graph.outputs if name is not None)
    sizes = {node.name: _bytes(node.outputs) for node in graph.nodes if root[node.name] == node.name}
    ending: dict[int, int] = {}
    for name, size in sizes.items():
        ending[last[name]] = ending.get(last[name], 0) + size
    alive = most = 0
    for place, node in enumerate(graph.nodes):
        alive += sizes.get(node.name, 0)
        most = max(most, alive)
        alive -= ending.get(place, 0)
    return most


def _bytes(metas: Sequence[object]) -> int:
    return sum(meta.bytes() for meta in metas if isinstance(meta, TensorMeta) and meta.device.type == "cuda")


def free_bytes(device: int) -> int:
    """Memory that the GPU has left, with what torch keeps of it unused."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
