"""Examine: one case through everything that the contract promises of it.

Place: above the properties, below the processes. Input: a case, a backend. Output: ``Examined``.
Invariants: whatever the backend raises is a finding; a property that has nothing to ask says why; torch's generators
and switches are left as they were.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mixbackend.certify.cases import BROADCAST, ZERO_SIZE, Case
from mixbackend.certify.properties import ALL, COMPILING
from mixbackend.certify.properties.memory import depends_on_memory
from mixbackend.certify.tested import NotAsked, Problem, Tested, eager_refuses, error_in_units, one_line
from mixbackend.contracts import CompiledRegion
from mixbackend.contracts.asked import AskedBackend
from mixbackend.execute.verify import eager_result

At = Callable[[str], None]
"""Told the name of what is looked at next: where a process dies or hangs, it says where."""

_CALLS = 30
_WARM = 5
_LEAST_SAVED = 0.1
"""Of eager's seconds: less is noise."""


@dataclass(frozen=True)
class Examined:
    """What was found of a case.

    Attributes:
        problems: what does not hold, by kind, each with what was seen.
        held: names of the properties that hold.
        not_asked: by name of a property, why it had nothing to say.
        error: distance of results from float64 in units of their type; ``None`` where there is none.
        artifact: what ``load`` takes, where the backend stores something and is right.
    """

    problems: tuple[Problem, ...] = ()
    held: tuple[str, ...] = ()
    not_asked: Mapping[str, str] = field(default_factory=dict)
    error: float | None = None
    artifact: bytes | None = None


def examine(case: Case, backend: AskedBackend, at: At, quick: bool = False) -> Examined:
    """Compile a case and ask everything about it; where it must be quick, nothing for which more is compiled."""
    with warnings.catch_warnings(), torch.random.fork_rng([]):
        warnings.simplefilter("ignore")
        at("compile")
        compiled = _compiled(case, backend)
        if isinstance(compiled, Problem):
            return Examined((compiled,))
        at("values")
        tested = Tested(case, backend, compiled)
        first, error = _first_call(tested)
        if isinstance(first, Problem):
            # What is wrong at once is wrong in every later call, too: its one reason is enough.
            return Examined((first,), ("compile",), error=error)
        if first:
            return Examined((), ("compile",), {"values": first}, error)
        return _properties(tested, error, at, quick)


def _compiled(case: Case, backend: AskedBackend) -> CompiledRegion | Problem:
    again = [backend.judge(view) for view in case.region.views]
    if not case.region.matches and again != [backend.judge(view) for view in case.region.views]:
        return Problem("verdict", "judge() answers otherwise when it is asked again")
    try:
        return backend.compile(case.region)
    except Exception as error:
        return Problem("compile", f"compiling raises {one_line(error)}")


def _first_call(tested: Tested) -> tuple[Problem | str, float | None]:
    """The problem of the first call, or why it says nothing; empty if it is right."""
    case, inputs = tested.case, tested.inputs()
    if not (tested.region.outputs or tested.region.written):
        return "it computes nothing", None
    if refusal := eager_refuses(tested.region, inputs):
        return f"eager refuses it: {refusal}", None
    try:
        problem, outputs = tested.judged_results(inputs)
    except NotAsked as reason:
        return str(reason), None
    error = error_in_units(tested, case.inputs, outputs) if outputs else None
    if problem is not None and problem.kind in ("values", "raises"):
        problem = replace(problem, kind=_kind_of(tested, problem.kind))
    return problem or "", error


def _kind_of(tested: Tested, otherwise: str) -> str:
    """What is special about a case that is wrong names what is wrong."""
    if otherwise == "values" and depends_on_memory(tested):
        return "poisoned memory"
    if ZERO_SIZE in tested.case.features:
        return "zero-size"
    return "broadcasting" if BROADCAST in tested.case.features else otherwise


def _properties(tested: Tested, error: float | None, at: At, quick: bool) -> Examined:
    problems: list[Problem] = []
    held, not_asked = ["compile", "values"], {}
    for name, holds in ALL.items():
        if quick and name in COMPILING:
            not_asked[name] = "left out of quick runs"
            continue
        at(name)
        try:
            problem = holds(tested)
        except NotAsked as reason:
            not_asked[name] = str(reason)
            continue
        except Exception as failure:
            problem = Problem(name, one_line(failure))
        if problem is None:
            held.append(name)
        else:
            problems.append(problem)
    artifact = None if problems else tested.compiled.artifact
    return Examined(tuple(problems), tuple(held), not_asked, error, artifact)


def saved_seconds(case: Case, backend: AskedBackend) -> float | None:
    """What a refused case would save per call if it was claimed; ``None`` where the backend cannot do it after all,
    or nothing would be saved."""
    with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng([]):
        warnings.simplefilter("ignore")
        try:
            tested = Tested(case, backend, backend.compile(case.region))
            if tested.judged(tested.inputs()) is not None or tested.judged(tested.inputs()) is not None:
                return None
        except Exception:  # a refused region may do whatever it likes
            return None
        inputs = tested.inputs()
        eager = _seconds(lambda: eager_result(case.region, inputs))
        saved = eager - _seconds(lambda: tested.compiled.run(list(inputs)))
        return saved if saved > _LEAST_SAVED * eager else None


def _seconds(call: Callable[[], Any]) -> float:
    taken = []
    for _ in range(_WARM + _CALLS):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[_WARM:])
