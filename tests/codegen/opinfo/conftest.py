"""torch's operator samples as regions: trace, judge, run, compare.

A sample counts only if every op of its traced graph is claimed. How a region is run is a parameter: the meaning of its
stages, or compiled code.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from op_samples import function_of

from mixbackend.backends.codegen.backend import CodegenBackend
from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.contracts import Region, Supported
from mixbackend.contracts.numerics import find_deviation
from mixbackend.contracts.torch_compat import operator_database
from mixbackend.execute.verify import eager_result, reference_result
from mixbackend.graph.trace import trace_region

from .rounding_noise import rounding_noise

Executor = Callable[[Region, Sequence[Any]], Sequence[torch.Tensor]]
Function = Callable[..., list[torch.Tensor]]

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool)
_BACKEND = CodegenBackend()
_BUDGET = _BACKEND.traits().error_budget
_FOREIGN = ("linalg.", "fft.", "masked.", "signal.", "sparse.", "_refs", "ops.")
"""Families made of decompositions, or of things that are no tensors of elements."""

_ARGUMENT = re.compile(r"arg(\d+)_\d+")
"""How the arguments of a traced function are named."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Samples that torch refuses to trace are no news, and collecting what is logged of them takes most of the time."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@dataclass
class Tally:
    """What was reached.

    Attributes:
        samples: regions that were claimed and run.
        ops: how often each ATen op was part of one.
        wrong: what was claimed and came out wrong.
    """

    samples: int = 0
    ops: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def by_stages(region: Region, inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
    """The meaning of a region's stages."""
    return interpret_stages(lower_region(region), inputs)


def by_backend(region: Region, inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
    """Compiled code."""
    return _BACKEND.compile(region).run(inputs)


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


def run_sample(function: Function, tensors: list[torch.Tensor], executor: Executor, tally: Tally, name: str) -> None:
    """Run one sample if all of its graph is claimed, and note what came out."""
    region = _traced(function, tensors)
    if region is None or not _claimed(region, tally, name):
        return
    inputs = [tensors[int(_ARGUMENT.fullmatch(item.name)[1])] for item in region.inputs]
    try:
        with torch.no_grad():
            expected = eager_result(region, inputs)
    except Exception:  # eager refuses the values or the strides
        return
    if any(tuple(result.shape) != output.meta.shape for result, output in zip(expected, region.outputs, strict=True)):
        return  # torch's own promise is wrong
    tally.samples += 1
    tally.ops.update(view.op for view in region.views)
    try:
        results = executor(region, inputs)
    except Exception as error:  # collected: one report of all wrong claims
        tally.wrong.append(f"{name}: {type(error).__name__} {str(error)[:300]}")
        return
    tally.wrong += [f"{name}: {problem}" for problem in _problems(region, inputs, expected, results)]


def _claimed(region: Region, tally: Tally, name: str) -> bool:
    try:
        return all(_BACKEND.judge(view) == Supported() for view in region.views)
    except Exception as error:  # a verdict must never raise
        tally.wrong.append(f"{name}: {type(error).__name__} {str(error)[:300]}")
        return False


def _traced(function: Function, tensors: list[torch.Tensor]) -> Region | None:
    """A sample as one region without mutation; ``None`` if it reads values, carries tensors, or computes nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            region = trace_region(torch.func.functionalize(function), tensors)
    except Exception:
        return None
    given = all(_ARGUMENT.fullmatch(item.name) for item in region.inputs)
    return region if given and region.views and region.outputs else None


def _problems(
    region: Region, inputs: Sequence[Any], expected: tuple[torch.Tensor, ...], results: Sequence[torch.Tensor]
) -> Iterator[str]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = reference_result(region, inputs, expected)
    noise: Sequence[torch.Tensor] | None = None
    for index, (result, eager, exact) in enumerate(zip(results, expected, reference, strict=True)):
        deviation = find_deviation(index, result, eager, exact, _BUDGET)
        if deviation is not None and deviation.measure in ("rms", "max"):
            # The reference of float64 is eager itself, and eager may be right by luck where everything cancels.
            noise = rounding_noise(region, inputs, expected) if noise is None else noise
            deviation = find_deviation(index, result, eager, exact, _BUDGET, noise[index])
        if deviation is not None:
            yield f"{deviation} in {[view.op for view in region.views]} of {[str(item.meta) for item in region.inputs]}"
