"""Samples of torch's operator database as functions of their tensors."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from mixbackend.contracts import Region
from mixbackend.contracts.torch_compat import operator_database
from mixbackend.graph.trace import trace_region

Function = Callable[..., list[torch.Tensor]]

_FOREIGN = ("linalg.", "fft.", "masked.", "signal.", "sparse.", "_refs", "ops.")
"""Families made of decompositions, or of things that are no tensors of elements."""

_ARGUMENT = re.compile(r"arg(\d+)_\d+")
"""How the arguments of a traced function are named."""


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


def operators(dtype: torch.dtype) -> list[Any]:
    """Entries of the operator database that take a type."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            info
            for info in operator_database()
            if info.supports_dtype(dtype, "cpu") and not info.name.startswith(_FOREIGN)
        ]


def functions_of(info: Any, sample: Any) -> tuple[tuple[Function, ...], list[torch.Tensor]]:
    """A sample as functions of its tensors, the operator itself and its gradient, and the tensors."""
    forward, values = function_of(info, sample)
    tensors = [value.detach() for value in values]
    if not info.supports_autograd or not any(tensor.is_floating_point() for tensor in tensors):
        return (forward,), tensors
    return (forward, _gradient(forward)), tensors


def _gradient(forward: Function) -> Function:
    def gradient(*tensors: torch.Tensor) -> list[torch.Tensor]:
        places = [place for place, tensor in enumerate(tensors) if tensor.is_floating_point()]

        def floating(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            filled = list(tensors)
            for place, tensor in zip(places, given, strict=True):
                filled[place] = tensor
            return tuple(item for item in forward(*filled) if item.is_floating_point())

        results, backward = torch.func.vjp(floating, *(tensors[place] for place in places))
        # Cosines as what comes in: different values everywhere, and none of them zero for long.
        return list(backward(tuple(torch.cos(item) for item in results)))

    return gradient


def variants(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """The tensors as they are, with gaps in memory, and with nothing along their first dimension."""
    yield "plain", list(tensors)
    if any(tensor.dim() for tensor in tensors):
        yield "strided", [torch.stack([tensor, tensor], -1)[..., 1] for tensor in tensors]
        yield "empty", [tensor[:0] if tensor.dim() else tensor for tensor in tensors]


def traced_sample(function: Function, tensors: list[torch.Tensor]) -> Region | None:
    """A sample as one region without mutation; ``None`` if it reads values, carries tensors, or computes nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            region = trace_region(torch.func.functionalize(function), tensors)
    except Exception:
        return None
    given = all(_ARGUMENT.fullmatch(item.name) for item in region.inputs)
    return region if given and region.views and region.outputs else None


def inputs_of(region: Region, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What a traced sample takes, of the sample's tensors."""
    return [tensors[int(_ARGUMENT.fullmatch(item.name)[1])] for item in region.inputs]
