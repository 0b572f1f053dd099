"""Samples of torch's operator database as functions of their tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree


def function_of(info: Any, sample: Any) -> tuple[Callable[..., list[torch.Tensor]], list[torch.Tensor]]:
    """A sample as a function of its tensors, which returns those of the result; and its tensors."""
    leaves, form = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        first, arguments, keywords = pytree.tree_unflatten(filled, form)
        results = pytree.tree_leaves(info.op(first, *arguments, **keywords))
        return [item for item in results if isinstance(item, torch.Tensor)]

    return function, [leaves[place] for place in places]
