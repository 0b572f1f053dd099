"""Process groups of collectives, as far as recording them into CUDA graphs is concerned.

Place: a part of the door; see ``contracts.torch_compat``.
"""

from __future__ import annotations

import functools
import os
import weakref
from typing import Any

import torch

from mixbackend.contracts.torch_compat.graph_trees import manager_of

_REGISTER = "NCCL_GRAPH_REGISTER"
_holding: weakref.WeakKeyDictionary[Any, frozenset[str]] = weakref.WeakKeyDictionary()
"""Nodes of torch's trees with graphs that hold communicators, and the names of their groups."""
_hooked = False


def why_group_is_not_recorded(name: str, device: int) -> str:
    """Why collectives of a process group cannot be recorded into a CUDA graph, in words; empty if they can.

    Args:
        name: of the group, as operators of a traced graph name it.
        device: number of the GPU.

    Only torch's own NCCL backend is known to see that its stream is being captured; what wraps it, for
    ``TORCH_DISTRIBUTED_DEBUG=DETAIL``, talks to other ranks from the processor as well.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return "there is no process group"
    from torch.distributed.distributed_c10d import _resolve_process_group

    # Newer releases give names of groups a type of their own.
    resolve: Any = _resolve_process_group
    try:
        backend = resolve(name)._get_backend(torch.device("cuda", device))
    except (RuntimeError, ValueError):
        return f"process group {name} has no backend for GPUs here"
    nccl = getattr(torch.distributed, "ProcessGroupNCCL", None)
    if nccl is None or not isinstance(backend, nccl):
        return f"process group {name} is not NCCL's"
    return ""


def record_without_other_ranks() -> None:
    """Have NCCL wait for no other rank while a collective is recorded; to be called before the first recording.

    For recordings NCCL registers the buffers of a collective with the other ranks of a host, which it does by waiting
    for all of them to record, too. A rank never comes if its recording has failed. NCCL reads the switch when it
    records first; what the user has set stays.
    """
    os.environ.setdefault(_REGISTER, "0")


def ends_with_groups(names: frozenset[str], device: int) -> None:
    """Let go of the graph that this thread has just recorded before one of its process groups ends.

    NCCL ends a communicator only when all graphs with its collectives are gone, and waits for that for ever; code of
    the user's ends groups while what was compiled is still there. What was recorded is not run any more afterwards: a
    call of it gets an error of torch's tree before anything has run.

    Args:
        names: of the groups that have collectives in it.
        device: number of the GPU.
    """
    manager = manager_of(device)
    node = None if manager is None else manager.current_node
    if getattr(node, "graph", None) is not None:
        _holding[node] = names
        _hook()


def _hook() -> None:
    global _hooked
    if _hooked:
        return
    _hooked = True
    group = torch.distributed.ProcessGroup
    for name, waits in (("shutdown", True), ("abort", False)):
        setattr(group, name, _after_graphs(getattr(group, name), waits))


def _after_graphs(method: Any, waits: bool) -> Any:
    @functools.wraps(method)
    def ends(group: Any, *arguments: Any, **options: Any) -> Any:
        nodes = [node for node, names in _holding.items() if group.group_name in names]
        if nodes and waits:
            torch.cuda.synchronize()
        for node in nodes:
            node.graph = None
            _holding.pop(node, None)
        return method(group, *arguments, **options)

    return ends
