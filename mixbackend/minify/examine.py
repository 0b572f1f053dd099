"""Examine: compile one piece, run it, hold it against eager; in a process that may crash.

Place: under ``worker``. Input: a region, values, a backend. Output: a ``Verdict``.
Rule: that of checks at run time (``execute.checked_call``): no farther from float64 than the backend's error budget
allows beside eager, inputs as they were, form as the region says; of a piece that is off by far this is found earlier.
Where constants enter, code that was made for their values runs, as it does in models.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mixbackend.calibrate.timing import time_calls
from mixbackend.certify.tested import one_line
from mixbackend.certify.variants import copies
from mixbackend.contracts import CompiledRegion, InputRole, OpTag, Region, Unsupported
from mixbackend.contracts.asked import AskedBackend
from mixbackend.contracts.numerics import find_deviation
from mixbackend.contracts.region import RunFunction
from mixbackend.execute.checked_call import CheckedRegion, checked_call
from mixbackend.execute.verify import before_writing, eager_result, reference_result
from mixbackend.minify.verdict import Verdict

At = Callable[[str], None]
TIMED_S = 0.25
"""For each of backend and eager."""
_CLEARLY = 1e3
"""Times what is allowed: then a smaller piece of what is wrong is wrong, too, without a look at what rounding explains,
which takes as long as the reference several times over."""


def examine(region: Region, inputs: Sequence[Any], backend: AskedBackend, at: At, timed: bool, judged: bool) -> Verdict:
    """What becomes of a piece.

    Args:
        at: told what comes next.
        timed: whether a right piece is timed as well.
        judged: whether it is a part of a planned region: the backend is asked first if it claims the ops.
    """
    with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng([]):
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(0)
        at("eager")
        refusal = _refusal(region, inputs, backend if judged else None)
        if refusal:
            return Verdict("unknown", "eager", refusal)
        at("compile")
        try:
            compiled = backend.compile(region)
            run = bound_run(region, compiled, inputs)
        except Exception as error:  # whatever a backend raises is the finding
            return Verdict("raises", "compile", one_line(error), type(error).__name__)
        at("run")
        try:
            results = run(copies(inputs))
        except Exception as error:
            return Verdict("raises", "run", one_line(error), type(error).__name__)
        at("compare")
        deviation = _clear_deviation(region, inputs, results, backend) if judged else ""
        if deviation:
            return Verdict("wrong", "run", deviation)
        return _compared(region, inputs, backend, compiled, run, at, timed)


def _compared(
    region: Region,
    inputs: Sequence[Any],
    backend: AskedBackend,
    compiled: CompiledRegion,
    run: RunFunction,
    at: At,
    timed: bool,
) -> Verdict:
    names = tuple(item.name for item in region.inputs)
    checked = CheckedRegion(region, compiled, backend.traits().error_budget, names)
    outcome = checked_call(checked, run, copies(inputs), "whole")
    if outcome.error is not None:
        return Verdict("raises", "run", one_line(outcome.error), type(outcome.error).__name__)
    if outcome.failed:
        return Verdict("wrong", "run", outcome.wrong or "it wrote into its inputs")
    kind, text = ("unknown", outcome.unchecked) if outcome.unchecked else ("right", "")
    if not timed or region.written:
        return Verdict(kind, "run", text)  # type: ignore[arg-type]
    at("time")
    seconds, eager_s = timed_beside_eager(region, inputs, run)
    return Verdict(kind, "run", text, seconds=seconds, eager_s=eager_s)  # type: ignore[arg-type]


def _clear_deviation(
    region: Region, inputs: Sequence[Any], results: Sequence[torch.Tensor], backend: AskedBackend
) -> str:
    """How far results are off that no rounding explains; empty where that takes a closer look."""
    if region.written or any(OpTag.RANDOM in view.node.tags for view in region.views):
        return ""
    eager, budget = eager_result(region, copies(inputs)), backend.traits().error_budget
    exact = reference_result(region, copies(inputs), eager)
    for place, values in enumerate(zip(results, eager, exact, strict=False)):
        found = find_deviation(place, *values, budget)
        if found is not None and found.measure in ("rms", "max") and found.error > _CLEARLY * found.allowed:
            return str(found)
    return ""


def timed_beside_eager(region: Region, inputs: Sequence[Any], run: RunFunction) -> tuple[float, float]:
    """Seconds of a call of the code, and of eager."""
    given = copies(inputs)
    gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in given)
    calls = (lambda: run(list(given)), lambda: eager_result(region, given))
    mine, eager = time_calls(calls, TIMED_S, torch.cuda.synchronize if gpu else None, replayed=False)
    return mine.seconds, eager.seconds


def bound_run(region: Region, compiled: CompiledRegion, inputs: Sequence[Any]) -> RunFunction:
    """The code as models run it: for the values of constants, where the backend makes such."""
    pairs = list(zip(region.inputs, inputs, strict=True))
    constants = [value if item.role is InputRole.CONSTANT else None for item, value in pairs]
    if compiled.bind is None or all(value is None for value in constants):
        return compiled.run
    return compiled.bind(constants).run


def _refusal(region: Region, inputs: Sequence[Any], backend: AskedBackend | None) -> str:
    """Why a piece is nothing that the backend would get; empty if it might."""
    try:
        eager_result(region, before_writing(region, copies(inputs)))
    except Exception as error:
        return f"eager refuses it: {one_line(error)}"
    if backend is None:
        return ""
    matched = {name for _, names in region.matches for name in names}
    verdicts = [(view, backend.judge(view)) for view in region.views if view.node.name not in matched]
    return next((f"{view.op}: {found.code}" for view, found in verdicts if isinstance(found, Unsupported)), "")
