"""Upstream's rule for when a compiled model counts as right.

Place: the suite's worker calls ``judge`` with what eager, float64 eager and the compiled model produced.
Rule, as in PyTorch's own benchmarks:

1. Eager in float64 is the reference. Where that cannot run, cosine similarity of at least 0.99 takes its place.
2. Eager in the tested dtype runs twice and must agree exactly; else nothing can be said about the model.
3. A tensor passes if ``allclose`` with the tolerance as ``rtol`` and ``atol``; or if its root mean square error against
   float64 is at most ``factor`` times eager's, plus a tenth of the tolerance. Dtypes must match. Integers and booleans
   have ``allclose`` only.

Input: nested results (see ``steps.collect``). Output: ``Judgement`` with every mismatch.
Invariants: pure; nothing here runs a model.
Non-goals: deciding what to compare; that is ``steps``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Phase = Literal["inference", "training"]
Verdict = Literal["pass", "eager_two_runs_differ", "fail_accuracy"]

COSINE_FLOOR = 0.99
LOOSENED = {("timm", "deit_base_distilled_patch16_224"): 8e-2, ("timm", "vit_base_patch16_siglip_256"): 8e-2}
"""Training tolerances that upstream gives to single models of its suites."""
FORGIVEN_SMALL_TENSORS = frozenset({"yolov3"})
"""Models with tensors of up to 500 elements for which upstream raises the factor."""

_LOOSENED_ON_GPUS = frozenset({"soft_actor_critic", "tacotron2", "yolov3"})
_LOOSENED_IN_FLOAT16 = frozenset({"doctr_reco_predictor", "drq", "phlippe_resnet"})
_LOOSENED_IN_HALF: Mapping[str, frozenset[str]] = {
    "float16": _LOOSENED_IN_FLOAT16,
    "amp": _LOOSENED_IN_FLOAT16,
    "amp_float16": _LOOSENED_IN_FLOAT16,
    "bfloat16": frozenset({"doctr_reco_predictor", "drq"}),
}
"""TorchBench models with a tolerance of their own where less than float32 is computed in."""

_TOLERANCES: Mapping[tuple[str, Phase], float] = {
    ("hf", "inference"): 1e-3,
    ("hf", "training"): 1e-2,
    ("timm", "inference"): 1e-3,
    ("timm", "training"): 1e-2,
    ("torchbench", "inference"): 1e-4,
    ("torchbench", "training"): 1e-4,
    ("demo", "inference"): 1e-4,
    ("demo", "training"): 1e-4,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """How strictly one model is judged.

    Attributes:
        tolerance: relative and absolute.
        forgive_small: raise the factor for small tensors.
    """

    tolerance: float
    forgive_small: bool = False


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One place where two results differ too much.

    Attributes:
        path: where in the nested result, as ``[1]['encoder.weight.grad']``.
        reason: what was compared and how far off it is.
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one model, with the mismatches behind it and whether cosine similarity had to serve."""

    verdict: Verdict
    mismatches: tuple[Mismatch, ...] = ()
    by_cosine: bool = False


def rule_for(family: str, name: str, phase: Phase, precision: str = "float32", device_type: str = "cpu") -> Rule:
    """Upstream's tolerance for a model; ``precision`` is one of ``precision.Precision``."""
    tolerance = _TOLERANCES[(family, phase)]
    if family == "torchbench":
        tolerance = _torchbench_tolerance(name, phase, precision, device_type)
    if phase == "training":
        tolerance = LOOSENED.get((family, name), tolerance)
    return Rule(tolerance, name in FORGIVEN_SMALL_TENSORS)


def _torchbench_tolerance(name: str, phase: Phase, precision: str, device_type: str) -> float:
    """TorchBench is the family with a tolerance that depends on precision and device."""
    if name in _LOOSENED_IN_HALF.get(precision, ()):
        return 1e-2
    if precision in _LOOSENED_IN_HALF and precision != "bfloat16":
        return 1e-3
    if phase == "training" and device_type != "cpu":
        return 8e-2 if name in _LOOSENED_ON_GPUS else 1e-3
    return _TOLERANCES[("torchbench", phase)]


def judge(first: Any, second: Any, compiled: Any, exact: Any | None, rule: Rule) -> Judgement:
    """Hold a compiled model's results against two eager runs and a float64 run (``None``: it failed)."""
    unstable = tuple(_differences(first, second, None, Rule(0.0), False, ""))
    if unstable:
        return Judgement("eager_two_runs_differ", unstable)
    by_cosine = exact is None
    mismatches = tuple(_differences(first, compiled, exact, rule, by_cosine, ""))
    return Judgement("fail_accuracy" if mismatches else "pass", mismatches, by_cosine)


def errors(first: Any, compiled: Any, exact: Any | None) -> tuple[float, float] | None:
    """Of the tensor that is farthest off, the compiled model's error and eager's beside it; ``None``: nothing to say.

    Root mean square against float64, over the root mean square of the float64 values. For people: the verdict is
    ``judge``'s.
    """
    pairs = [
        (root_mean_square_error(exact, result) / scale, root_mean_square_error(exact, own) / scale)
        for exact, own, result in _leaves(exact, first, compiled)
        if exact.dtype == torch.float64 and exact.numel() and (scale := exact.square().mean().sqrt().item()) > 0
    ]
    known = [pair for pair in pairs if all(math.isfinite(value) for value in pair)]
    return max(known, default=None)


def _leaves(exact: Any, first: Any, compiled: Any) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Tensors of equal shape at equal places of the three."""
    if isinstance(exact, Tensor):
        alike = isinstance(first, Tensor) and isinstance(compiled, Tensor)
        if alike and exact.shape == first.shape == compiled.shape:
            yield exact, first, compiled
        return
    keyed = isinstance(exact, Mapping)
    if not keyed and not isinstance(exact, (tuple, list)):
        return
    for key in exact if keyed else range(len(exact)):
        try:
            inner = exact[key], first[key], compiled[key]
        except (KeyError, IndexError, TypeError):
            continue
        yield from _leaves(*inner)


def _differences(
    reference: Any, result: Any, exact: Any | None, rule: Rule, by_cosine: bool, path: str
) -> Iterator[Mismatch]:
    if isinstance(reference, Tensor):
        reason = _tensor_difference(reference, result, exact, rule, by_cosine)
        if reason:
            yield Mismatch(path or "result", reason)
    elif isinstance(reference, (Mapping, tuple, list)):
        yield from _nested_differences(reference, result, exact, rule, by_cosine, path)
    elif isinstance(reference, float):
        expected, found = (torch.tensor(value, dtype=torch.float64) for value in (reference, result))
        reason = _tensor_difference(expected, found, None, rule, False)
        if reason:
            yield Mismatch(path or "result", reason)
    elif type(reference) in (int, bool, str, type(None)) and reference != result:
        yield Mismatch(path or "result", f"{reference!r} became {result!r}")


def _nested_differences(
    reference: Any, result: Any, exact: Any | None, rule: Rule, by_cosine: bool, path: str
) -> Iterator[Mismatch]:
    keyed = isinstance(reference, Mapping)
    if isinstance(result, Mapping) != keyed or not isinstance(result, (Mapping, tuple, list)):
        yield Mismatch(path or "result", f"{type(reference).__name__} became {type(result).__name__}")
        return
    expected_keys = list(reference) if keyed else list(range(len(reference)))
    keys = list(result) if keyed else list(range(len(result)))
    if set(keys) != set(expected_keys):
        yield Mismatch(path or "result", f"keys {sorted(map(str, set(keys) ^ set(expected_keys)))} are in one only")
        return
    for key in expected_keys:
        inner = None if exact is None else exact[key]
        yield from _differences(reference[key], result[key], inner, rule, by_cosine, f"{path}[{key!r}]")


def _tensor_difference(reference: Tensor, result: Any, exact: Any | None, rule: Rule, by_cosine: bool) -> str:
    if not isinstance(result, Tensor):
        return f"tensor became {type(result).__name__}"
    if reference.dtype != result.dtype:
        return f"dtype {reference.dtype} became {result.dtype}"
    if reference.shape != result.shape:
        return f"shape {tuple(reference.shape)} became {tuple(result.shape)}"
    if reference.dtype == torch.bool:
        reference, result = reference.to(torch.uint8), result.to(torch.uint8)
    if torch.allclose(reference, result, rtol=rule.tolerance, atol=rule.tolerance, equal_nan=by_cosine):
        return ""
    off = _largest_difference(reference, result)
    if by_cosine:
        score = cosine(reference, result)
        return "" if score >= COSINE_FLOOR else f"cosine similarity {score:.4f} (largest difference {off:.3e})"
    if not isinstance(exact, Tensor) or exact.dtype != torch.float64:
        return f"largest difference {off:.3e}, allowed {rule.tolerance:g}"
    own, error = root_mean_square_error(exact, reference), root_mean_square_error(exact, result)
    allowed = error_factor(reference, exact, rule) * own + rule.tolerance / 10
    if error <= allowed:
        return ""
    return f"root mean square error {error:.3e} against float64, allowed {allowed:.3e} (eager {own:.3e})"


def error_factor(result: Tensor, exact: Tensor, rule: Rule) -> float:
    """How many times eager's own error a result may have."""
    count = exact.numel()
    if rule.forgive_small and count <= 500:
        return 10.0 if count <= 10 else 8.0
    half = result.dtype in (torch.float16, torch.bfloat16)
    pointwise_kernel = result.ndim == 4 and result.shape[-1] == result.shape[-2] == 1
    return 3.0 if half or count < 1000 or pointwise_kernel or rule.tolerance >= 2e-2 else 2.0


def root_mean_square_error(exact: Tensor, result: Tensor) -> float:
    """Root of the mean squared difference, in float64."""
    return (exact - result.to(torch.float64)).square().mean().sqrt().item()


def cosine(reference: Tensor, result: Tensor) -> float:
    """Cosine of the angle between two tensors taken as vectors.

    A single number has no direction; for it the ratio of the smaller to the larger magnitude is taken, so that the
    same floor asks for agreement within one part in a hundred. (Upstream lets any number of the right sign pass.)
    """
    if reference.numel() == 1:
        pair = sorted((reference.item(), result.item()), key=abs)
        return pair[0] / pair[1]
    left, right = reference.flatten().to(torch.float32), result.flatten().to(torch.float32)
    return torch.nn.functional.cosine_similarity(left, right, dim=0, eps=1e-6).item()


def _largest_difference(reference: Tensor, result: Tensor) -> float:
    wide = torch.complex128 if reference.is_complex() else torch.float64
    difference = (reference.to(wide) - result.to(wide)).abs()
    return difference.max().item() if difference.numel() else 0.0
