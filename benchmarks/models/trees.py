"""Walking nested inputs and outputs of models.

Place: under the suite and the accuracy rule; a public stand-in for torch's private pytree module.
Input: any nesting of tuples, lists, mappings (a Hugging Face output is one) and leaves.
Invariants: order of the leaves is the order of the containers; a type that is not one of those containers is a leaf.
Non-goals: registering new container types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in ``value``, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """The same nesting with ``function`` applied to every tensor; plain dicts stand for mappings.

    A mapping comes back as a dict and a named tuple as a tuple: results are compared, never handed back to a model.
    """
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(function, item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map_tensors(function, item) for item in value)
    if isinstance(value, list):
        return [map_tensors(function, item) for item in value]
    return value
