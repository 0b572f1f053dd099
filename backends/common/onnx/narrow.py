"""Ops of a match, in the type of what comes out of it.

Place: before the walk over a region. Input: its ops as they were judged, and the planner's matches. Output: ops.
Torch computes attention that it writes out in float32 between halves, which no kernel for attention does: their sums
have float32 inside, and values between them are halves. So a backend that took a match as one label, and its ops one
by one, writes them all in halves.
Invariants: ops outside of matches are as they were; what enters a match and what leaves it has its type already, which
the pattern's check asked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch

from mixbackend.contracts import OpView, Region, TensorMeta

_Meta = TypeVar("_Meta")


def views_to_write(region: Region) -> dict[str, OpView]:
    """The ops of a region by name."""
    views = {view.node.name: view for view in region.views}
    for _, names in region.matches:
        dtype = views[names[-1]].output_tensors[0].dtype
        views |= {name: _in_type(views[name], dtype) for name in names}
    return views


def _in_type(view: OpView, dtype: torch.dtype) -> OpView:
    arguments = tuple((name, dtype if value is torch.float32 else value) for name, value in view.node.arguments)
    node = replace(view.node, arguments=arguments, outputs=tuple(_meta(meta, dtype) for meta in view.node.outputs))
    inputs = tuple(replace(item, meta=_meta(item.meta, dtype)) for item in view.inputs)
    return replace(view, node=node, inputs=inputs)


def _meta(meta: _Meta, dtype: torch.dtype) -> _Meta:
    if isinstance(meta, TensorMeta) and meta.dtype is torch.float32:
        return replace(meta, dtype=dtype)
    return meta
