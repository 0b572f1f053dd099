"""torch's operator samples as regions: trace, judge, run, compare.

A sample counts only if every op of its traced graph is claimed. How a region is run is a parameter: the meaning of its
stages, or compiled code.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from op_samples import Function, inputs_of, traced_sample
from rounding_noise import rounding_noise

from mixbackend.backends.codegen.backend import CodegenBackend
from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.contracts import Region, Supported
from mixbackend.contracts.numerics import find_deviation
from mixbackend.execute.verify import eager_result, reference_result

Executor = Callable[[Region, Sequence[Any]], Sequence[torch.Tensor]]

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool)
_BACKEND = CodegenBackend()
_BUDGET = _BACKEND.traits().error_budget


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


def run_sample(function: Function, tensors: list[torch.Tensor], executor: Executor, tally: Tally, name: str) -> None:
    """Run one sample if all of its graph is claimed, and note what came out."""
    region = traced_sample(function, tensors)
    if region is None or not _claimed(region, tally, name):
        return
    inputs = inputs_of(region, tensors)
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
