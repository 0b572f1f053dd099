"""One operator sample held against eager and float64, and against the control where it fails.

Place: in the worker. Input: a sample, a backend. Output: ``Finding``.
Rule: ``contracts.numerics`` with the budget that every compiling backend states of itself; outputs have eager's
strides, or those that torch's fake kernels state where these differ (later graphs and backwards are made for them).
What eager refuses is no sample. What eager computes otherwise with another seed, or leaves as it lay in memory, is
held to its shapes and types. A failure that the control (aot_eager) has as well is not the backend's.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from mixbackend.benchmarks.conformance.operator_sample import OperatorSample, Results
from mixbackend.benchmarks.conformance.rounding_noise import rounding_noise
from mixbackend.contracts import ErrorBudget
from mixbackend.contracts.numerics import Deviation, find_deviation

BUDGET = ErrorBudget(factor=4.0, floor=64.0)
"""What every backend that compiles states of itself."""

CONTROL = "aot_eager"
_UNWRITTEN = ("empty", "new_empty", "resize_")
_SHAPE_ONLY = ("shape", "dtype")

Outcome = Literal["right", "stated", "random", "refused", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was seen of a sample.

    Attributes:
        outcome: ``refused``: eager itself raises; ``stated``: right, with strides that torch states and eager has not.
        graphs: how many graphs the backend was handed.
        problem: in words, where it is wrong.
        control: what the control does there: ``right``, or its own problem.
    """

    outcome: Outcome
    graphs: int = 0
    problem: str = ""
    control: str = ""


def check(sample: OperatorSample, backend: Callable[..., Any]) -> Finding:
    """Run a sample in eager, in float64 and compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            eager = sample.run()
            other = sample.run(seed=4321)
        except Exception:  # eager's own refusal: whatever an operator raises
            return Finding("refused")
        random = sample.name.rpartition(".")[2].startswith(_UNWRITTEN) or not _equal(eager.tensors(), other.tensors())
        exact = eager.tensors() if random else _exact(sample, eager.tensors())
        graphs = [0]
        stated: set[int] = set()
        problem = _problem(sample, _counting(backend, graphs), eager, exact, random, stated)
        if problem is None:
            return Finding("random" if random else "stated" if stated else "right", graphs[0])
        control = _problem(sample, CONTROL, eager, exact, random, set())
        return Finding("wrong", graphs[0], problem, control or "right")


def _counting(backend: Callable[..., Any], graphs: list[int]) -> Callable[..., Any]:
    def counting(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        graphs[0] += 1
        return backend(graph_module, inputs)

    return counting


def _problem(
    sample: OperatorSample,
    backend: Any,
    eager: Results,
    exact: Sequence[torch.Tensor],
    random: bool,
    stated: set[int],
) -> str | None:
    """What is wrong of a backend's results; ``None`` if nothing is.

    Outputs with strides that torch states, where eager has others, are added to ``stated``.
    """
    torch.compiler.reset()
    try:
        results = sample.run(lambda function: torch.compile(function, backend=backend))
    except Exception as error:  # whatever compiling or running raises is the finding
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    for found, wanted, what in zip(results, eager, ("outputs", "gradients"), strict=True):
        if len(found) != len(wanted):
            return f"{len(found)} {what}, eager has {len(wanted)}"
    noise: list[torch.Tensor] | None = None
    for place, (mine, theirs, right) in enumerate(zip(results.tensors(), eager.tensors(), exact, strict=True)):
        deviation = find_deviation(place, mine, theirs, right, BUDGET)
        if deviation is not None and random and deviation.measure not in _SHAPE_ONLY:
            continue
        if deviation is not None and deviation.measure in ("rms", "max"):
            noise = _noise(sample, exact, theirs.dtype) if noise is None else noise
            deviation = _with_noise(place, mine, theirs, right, noise)
        if deviation is not None:
            return str(deviation)
        if place < len(eager.outputs) and not random and _strides(mine) != _strides(theirs):
            known = sample.stated_strides()
            if len(known) <= place or known[place] != mine.stride():
                return f"output {place} has strides {mine.stride()}, eager {theirs.stride()}"
            stated.add(place)
    return None


def _with_noise(
    place: int, mine: torch.Tensor, theirs: torch.Tensor, right: torch.Tensor, noise: Sequence[torch.Tensor]
) -> Deviation | None:
    known = noise[place] if len(noise) > place and noise[place].shape == mine.shape else None
    return find_deviation(place, mine, theirs, right, BUDGET, known)


def _noise(sample: OperatorSample, exact: Sequence[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """None where the operator has no float64 kernel, or asks for values on its way."""
    with contextlib.suppress(Exception):
        return rounding_noise(sample, exact, dtype)
    return []


def _exact(sample: OperatorSample, eager: list[torch.Tensor]) -> list[torch.Tensor]:
    """In float64; eager's own results where that does not run."""
    try:
        found = sample.run(wide=True).tensors()
    except Exception:  # no float64 kernel, or types that must be equal
        return eager
    alike = len(found) == len(eager) and all(
        mine.shape == theirs.shape and mine.is_complex() == theirs.is_complex()
        for mine, theirs in zip(found, eager, strict=True)
    )
    return found if alike else eager


def _equal(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(
        mine.shape == theirs.shape and torch.equal(_numbers(mine), _numbers(theirs))
        for mine, theirs in zip(left, right, strict=True)
    )


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """As real numbers without NaNs, which equal nothing."""
    real = torch.view_as_real(tensor.resolve_conj().to(torch.complex128)) if tensor.is_complex() else tensor
    return real.double().nan_to_num() if real.is_floating_point() else real


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Of dimensions that have some; an empty tensor lies nowhere."""
    if tensor.numel() == 0 or tensor.layout != torch.strided:
        return ()
    return tuple(step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
