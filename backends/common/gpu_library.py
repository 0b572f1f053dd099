"""GPU libraries: what the backends of NVIDIA's libraries share.

Place: asked by ``backends.cudnn`` and ``backends.cublaslt`` for availability, verdicts on devices and types, rates.
Non-goals: kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mixbackend.contracts import (
    Availability,
    BackendRates,
    Condition,
    DeviceModel,
    HostRates,
    OpTag,
    OpView,
    Size,
    SymbolicSize,
    Unsupported,
    known,
)
from mixbackend.contracts.gpu_rates import gpu_rates, library_calls

HALVES = frozenset({torch.float16, torch.bfloat16})
TYPES = HALVES | {torch.float32}
_ENTRY_S = 3e-6
"""Of the processor: the straight line of Python that calls the kernels."""
_CROSSING_S = 0.1e-6
_COPIES = ("aten.clone.default",)


def why_no_gpu() -> str:
    """Why torch has no NVIDIA GPU here; empty if it has one."""
    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    return "" if torch.cuda.is_available() else "torch finds no CUDA device"


def gpu_availability(library: str, version: str, *operators: str) -> Availability:
    """Available where there is a GPU and torch has these operators of ``aten``."""
    reason = why_no_gpu()
    missing = [name for name in operators if not hasattr(torch.ops.aten, name)]
    if not reason and missing:
        reason = f"this torch lacks operators of {library}: {', '.join(missing)}"
    return Availability(not reason, reason, "" if reason else version)


def moves(view: OpView) -> bool:
    """Whether an op only moves or renames data between kernels."""
    return OpTag.STRIDE_SENSITIVE not in view.node.tags and (view.op in _COPIES or OpTag.VIEW in view.node.tags)


def not_on_gpu(view: OpView) -> Unsupported | None:
    """The refusal of tensors that are elsewhere."""
    for meta in (*view.input_tensors, *view.output_tensors):
        if meta.device.type != "cuda":
            return Unsupported("device", f"{meta} is not on a CUDA device")
    return None


def not_one_type(view: OpView) -> Unsupported | None:
    """The refusal of types without kernels, and of several at once."""
    first = view.input_tensors[0].dtype
    for meta in (*view.input_tensors, *view.output_tensors):
        if meta.dtype not in TYPES:
            return Unsupported("dtype", f"{meta.dtype}, needed one of float16, bfloat16, float32")
        if meta.dtype is not first:
            return Unsupported("dtype", f"{meta.dtype} meets {first}")
    return None


def may_be_empty(sizes: Sequence[Size], what: str) -> Unsupported | None:
    """The refusal of sizes that may be zero."""
    for size in sizes:
        if known(Condition(size, "at_least", 1)) != "yes":
            return Unsupported("dynamic-shape" if isinstance(size, SymbolicSize) else "layout", f"{what} may be empty")
    return None


def library_prior(backend: str, device: DeviceModel, rows: Sequence[str]) -> BackendRates | None:
    """Rates to assume of a library's kernels on a GPU; nothing for other devices.

    Args:
        backend, device: the backend that has them, and where it runs.
        rows: what it has kernels for, beside the pointwise ops that run in these while they wait for memory.
    """
    if device.place.type != "cuda":
        return None
    inside = {"pointwise": 0.0}
    host = HostRates(_ENTRY_S, _CROSSING_S, device.launch_s, (*library_calls(device), *inside.items()))
    return gpu_rates(backend, device, (*rows, *inside), host, inside)
