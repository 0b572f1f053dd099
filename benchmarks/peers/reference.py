"""What is right for a case, and how much work it is.

Place: the reference's process writes it to a file, every peer's process reads it.
Output of ``make``: eager's results and those of eager in float64; FLOPs, and the bytes that must move at least.
Rule of ``mismatches``: as in ``accuracy``, within the tolerance or no farther from float64 than eager times a factor.
Invariants: a reference belongs to weights and inputs with one digest; another digest is a mismatch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mixbackend.benchmarks.one_model.accuracy import Rule, judge
from mixbackend.benchmarks.peers import executors
from mixbackend.benchmarks.peers.models import Inputs, PeerModel
from mixbackend.benchmarks.peers.request import PeerCase

_FILE = "reference.pt"
_TOLERANCES = {("float32", "inference"): 1e-3, ("float32", "training"): 1e-2}
_HALF_TOLERANCE = 1e-2
_ALIKE = 1e-7
"""Part of all sizes that digests of one model may differ by; another seed's differ by one over the root of their
number."""
_TRAINING_PASSES = 6
"""A step reads every weight forward and backward, writes and reads its gradient, reads and writes the weight."""

Results = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Work:
    """What a case costs at least.

    Attributes:
        flops: multiplications and additions of matrix products and convolutions.
        bytes: weights, inputs and outputs once each; weights six times in training.
    """

    flops: int
    bytes: int


def load(model: PeerModel, case: PeerCase) -> tuple[nn.Module, Inputs]:
    """Module and inputs of a case."""
    return model.load(case.batch, case.phase == "training", getattr(torch, case.dtype))


def digest(module: nn.Module, inputs: Inputs) -> tuple[float, float]:
    """Two numbers for all weights, buffers and inputs: a sum of them, and that of their distances from zero."""
    totals, sizes = [], []
    with torch.no_grad():
        for index, value in enumerate((*module.parameters(), *module.buffers(), *inputs)):
            wide = value.double() * (1 + index % 7)
            totals.append(wide.sum().item())
            sizes.append(wide.abs().sum().item())
    return math.fsum(totals), math.fsum(sizes)


def is_alike(first: tuple[float, float], second: tuple[float, float]) -> bool:
    """Whether two digests may be of one model: random numbers of libraries differ in last places between processes."""
    sizes = max(first[1], second[1])
    return all(abs(one - other) <= _ALIKE * sizes for one, other in zip(first, second, strict=True))


def make(model: PeerModel, case: PeerCase, folder: Path) -> Work:
    """Run eager in the case's dtype and in float64, and write what they gave."""
    module, inputs = load(model, case)
    mark = digest(module, inputs)
    work = count_work(model, case, copy.deepcopy(module), inputs)
    exact = _exact(model, case, module, inputs)
    eager = _results(model, case, module, inputs)
    torch.save({"digest": mark, "eager": eager, "exact": exact}, folder / _FILE)
    return work


def read(folder: Path) -> Mapping[str, Any]:
    """What ``make`` wrote."""
    return torch.load(folder / _FILE, weights_only=True, mmap=True)


def mismatches(found: Results, reference: Mapping[str, Any], case: PeerCase) -> list[str]:
    """Where results are not right; a peer that computes in a wider dtype is held against the narrower one."""
    expected = reference["eager"]
    known = {
        name: value.to(expected[name].dtype) if name in expected and value.is_floating_point() else value
        for name, value in found.items()
    }
    rule = Rule(_TOLERANCES.get((case.dtype, case.phase), _HALF_TOLERANCE))
    return [str(item) for item in judge(expected, expected, known, reference["exact"], rule).mismatches]


def count_work(model: PeerModel, case: PeerCase, module: nn.Module, inputs: Inputs) -> Work:
    """FLOPs of one eager call, attention spelled out so that it is counted, and the least bytes it can move."""
    executor = _executor(model, case, module, inputs)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        produced = executor.run()
    weights = sum(value.numel() * value.element_size() for value in (*module.parameters(), *module.buffers()))
    outputs = executor.results(produced) if case.phase == "inference" else {}
    passed = sum(value.numel() * value.element_size() for value in (*inputs, *outputs.values()))
    times = _TRAINING_PASSES if case.phase == "training" else 1
    return Work(int(counter.get_total_flops()), int(times * weights + passed))


def _exact(model: PeerModel, case: PeerCase, module: nn.Module, inputs: Inputs) -> Results | None:
    wide = tuple(value.double() if value.is_floating_point() else value for value in inputs)
    try:
        return _results(model, case, copy.deepcopy(module).double(), wide)
    except (RuntimeError, TypeError, ValueError):  # a dtype is written into the model: tolerances alone must serve
        return None


def _results(model: PeerModel, case: PeerCase, module: nn.Module, inputs: Inputs) -> Results:
    executor = _executor(model, case, module, inputs)
    return executor.results(executor.run())


def _executor(model: PeerModel, case: PeerCase, module: nn.Module, inputs: Inputs) -> executors.Executor:
    if case.phase == "training":
        return executors.training("eager", None, module, inputs, model.loss)
    return executors.inference("eager", None, module, inputs, 0)
