"""Folds: the meaning of reductions and scans, on torch tensors.

Place: below both interpreters.
Invariants: as documented at ``ReductionKind`` and ``ScanKind``; values keep their type.
"""

from __future__ import annotations

import torch

from mixbackend.backends.codegen.ir.stages import ReductionKind, ScanKind
from mixbackend.contracts import IrError


def fold(kind: ReductionKind, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Fold the last dimension away; one result per result of the kind.

    Raises:
        IrError: an extreme of nothing.
    """
    if values.shape[-1] == 0 and kind in ("max", "min", "argmax", "argmin"):
        if values.shape[:-1].numel() > 0:
            raise IrError(f"{kind} over nothing has no value")
        return (values.new_empty(values.shape[:-1], dtype=torch.int64 if kind.startswith("arg") else values.dtype),)
    match kind:
        case "sum" | "dot":
            return (values.sum(-1, dtype=values.dtype),)
        case "prod":
            return (values.prod(-1, dtype=values.dtype),)
        case "max":
            return (values.amax(-1),)
        case "min":
            return (values.amin(-1),)
        case "any":
            return (values.any(-1),)
        case "all":
            return (values.all(-1),)
        case "argmax":
            return (_first(values, values.amax(-1, keepdim=True)),)
        case "argmin":
            return (_first(values, values.amin(-1, keepdim=True)),)
        case "welford":
            mean = values.mean(-1)
            return mean, (values - mean.unsqueeze(-1)).square().sum(-1)


def _first(values: torch.Tensor, extreme: torch.Tensor) -> torch.Tensor:
    """Position of the first value that is the extreme; where there is a NaN the extreme is NaN."""
    is_extreme = (values == extreme) | (values != values)
    is_extreme = torch.where(extreme != extreme, values != values, is_extreme)
    positions = torch.arange(values.shape[-1]).expand(values.shape)
    return torch.where(is_extreme, positions, values.shape[-1]).amin(-1)


def scan(kind: ScanKind, values: torch.Tensor, axis: int) -> torch.Tensor:
    """Fold along an axis, every intermediate result kept."""
    if values.numel() == 0:
        return values.clone()
    match kind:
        case "sum":
            return values.cumsum(axis, dtype=values.dtype)
        case "prod":
            return values.cumprod(axis, dtype=values.dtype)
        case "max":
            return values.cummax(axis).values
        case "min":
            return values.cummin(axis).values
        case "logsumexp":
            return values.logcumsumexp(axis)


def combine(kind: ScanKind, running: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """One step of a scan: the running result with one more value."""
    return scan(kind, torch.stack([running, value]), 0)[1]
