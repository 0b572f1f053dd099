"""Samples from torch's own operator database (``OpInfo``), forward and backward.

Place: beside ``own_samples``. Input: the name of an entry, an element type. Output: samples, the same ones in every
process. Needs the package ``expecttest``, as torch's database does; without it there are none.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from mixbackend.certify.samples import Sample
from mixbackend.contracts import Phase
from mixbackend.contracts.torch_compat import operator_database

NEEDED = "expecttest"
_SEED = 0


def missing() -> str:
    """Why torch's samples cannot be had here; empty if they can."""
    return "" if find_spec(NEEDED) else f"torch's operator samples need {NEEDED}: pip install {NEEDED}"


def load() -> None:
    """Load the database now, which takes seconds, and not at the first question."""
    if not missing():
        _database()


def names(dtype: str, phase: Phase) -> list[str]:
    """Entries that have samples of a type on the processor."""
    kind = getattr(torch, dtype)
    backward = phase == "backward"
    return [
        name
        for name, info in _database().items()
        if info.supports_dtype(kind, "cpu") and (not backward or info.supports_autograd)
    ]


def samples(name: str, dtype: str, dynamic: bool, phase: Phase, most: int) -> list[Sample]:
    """Some samples of an entry, spread over those that it has."""
    info, backward = _database()[name], phase == "backward"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # What ``info.sample_inputs`` does beside this is to seed all devices anew for each sample, for milliseconds.
        with _seeded():
            found = list(info.sample_inputs_func(info, "cpu", getattr(torch, dtype), backward))
    made = []
    for place in spread(len(found), most):
        function, tensors = function_of(info.op, found[place])
        called = gradients_of(function) if backward else function
        inputs = tuple(tensor.detach() for tensor in tensors) if backward else tuple(tensors)
        made.append(Sample(f"{name} #{place}", called, inputs, dynamic, phase))
    return made


@contextmanager
def _seeded() -> Iterator[None]:
    """All generators that samples draw from: torch's, Python's and NumPy's; afterwards they are as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(_SEED)
        random.seed(_SEED)
        np.random.seed(_SEED)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def spread(count: int, most: int) -> list[int]:
    """Up to ``most`` places of ``count``, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({place * (count - 1) // max(1, most - 1) for place in range(most)})


def function_of(operator: Callable[..., Any], sample: Any) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """A sample of the database as a function of its tensors, which returns those of the result; and its tensors."""
    given = (sample.input, tuple(sample.args), dict(sample.kwargs))

    def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, arguments, keywords = _filled(given, iter(tensors))
        return tuple(_tensors(operator(first, *arguments, **keywords)))

    return function, list(_tensors(given))


def gradients_of(function: Callable[..., Sequence[torch.Tensor]]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Gradients of all floating inputs, where each result has a gradient of its own values' cosines."""

    def backward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            given = [item.detach().requires_grad_(_is_floating(item)) for item in tensors]
            results = [item for item in function(*given) if item.requires_grad]
            wanted = [item for item in given if item.requires_grad]
            if not results or not wanted:
                return ()
            cotangents = [torch.cos(item.detach()) for item in results]
            found = torch.autograd.grad(results, wanted, cotangents, allow_unused=True)
        return tuple(item.detach() for item in found if item is not None)

    return backward


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _filled(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """The same nesting with other tensors."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, dict):
        return {key: _filled(item, tensors) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [_filled(item, tensors) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _is_floating(item: torch.Tensor) -> bool:
    return item.is_floating_point() or item.is_complex()


@cache
def _database() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {info.full_name: info for info in operator_database()}
