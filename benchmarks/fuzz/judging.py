"""One program in one setting: what is wrong with it, and where the fault is.

Place: between ``generate`` with ``settings`` and the campaign. Input: program, setting, seed. Output: a ``Verdict``.
Invariants: a difference that eager-with-capture (aot_eager) or inductor shows in the same place is torch's, and so is
trouble with regions of inductor's where inductor itself differs; one of a value that roundings move by a twentieth of
its size cannot be told; a result that the run-time check has repaired is a finding.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mixbackend.benchmarks.fuzz.comparison import Finding, differences
from mixbackend.benchmarks.fuzz.execution import Compile, Observation, run
from mixbackend.benchmarks.fuzz.generate import draw
from mixbackend.benchmarks.fuzz.live import opened, repeated
from mixbackend.benchmarks.fuzz.modes import InLoop, Shaken
from mixbackend.benchmarks.fuzz.program import Program
from mixbackend.benchmarks.fuzz.settings import configuration
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.execute.eager_loops import LOOPS, Loop
from mixbackend.storage.background_io import finish

_TROUBLE = ("verify_failed", "quarantine", "fallback", "repair")
_EDITED = "weights change too often"
"""In so many calls that is no trouble."""
_NEGATED = "negated when they are read"
"""Such graphs eager runs, as the documentation says; results are right."""
_SHAKEN = 3
_WRITTEN_WITHIN_S = 20.0
_TELLING = 0.05
"""A value that roundings move by a larger share of itself proves nothing."""


@dataclass
class Verdict:
    """What became of a program.

    Attributes:
        status: ``pass``, ``ours``, ``torch`` or ``unclear``.
        findings: those that are ours, or all of them where none is.
        backends: how many nodes each backend ran, over all graphs.
        regions: how many regions there were.
        tried: what became of the programs that calls tried, with how many of them that was.
        settled: whether nothing was left to be tried.
    """

    status: str
    findings: list[Finding] = field(default_factory=list)
    backends: dict[str, int] = field(default_factory=dict)
    regions: int = 0
    tried: dict[str, int] = field(default_factory=dict)
    settled: bool = True

    @property
    def signature(self) -> tuple[str, str]:
        """What must stay while the program is shrunk."""
        first = self.findings[0]
        return self.status, first.kind if first.kind != "event" else f"event {first.label}"


@dataclass(frozen=True)
class Truth:
    """What a program does without compiling.

    Attributes:
        eager, exact: seen of it, and in float64.
    """

    eager: Observation
    exact: Observation


def valid_program(seed: int, longest: int = 14) -> Program:
    """The program of a seed, without writes or gradients where eager refuses it as a whole because of them."""
    program = draw(seed, longest)
    if not run(program).error or "v99" in program.results:
        return program
    calm = replace(program, statements=tuple(item for item in program.statements if item.targets))
    if not run(calm).error:
        return calm
    return replace(program, calls=tuple(replace(call, grad=False) for call in program.calls))


def truth(program: Program, loop: Loop | None = None) -> Truth:
    """Eager's and float64's; in one of eager's loops where it has several."""
    eager = run(program, mode=InLoop(loop) if loop is not None else None)
    exact = run(program, wide=True, random=eager.random, mode=InLoop(loop) if loop is not None else None)
    return Truth(eager, exact if exact.error == eager.error else Observation())


def judge(program: Program, setting: str, seed: int, controls: bool = True) -> Verdict:
    """Run and compare.

    Args:
        program: what to compile.
        setting: how.
        seed: of the setting's random part.
        controls: whether inductor, too, is run to find where the fault of a difference is; aot_eager always is.
    """
    program, trying = (repeated(program), opened()) if setting == "live" else (program, contextlib.nullcontext())
    known = truth(program)
    # Nothing of other programs is known: neither code, nor which backends failed before.
    with _folder() as cache, trying:
        mixture = Mixture(load_config({**configuration(setting, seed), "cache": {"dir": cache}}))
        mine = run(program, _with(program, mixture))
        report = mixture.report()
    verdict = Verdict("pass", settled=mixture.settled())
    verdict.regions = sum(len(graph.plan.regions) for graph in report.graphs)
    for graph in report.graphs:
        for backend, count in graph.nodes_per_backend().items():
            verdict.backends[backend] = verdict.backends.get(backend, 0) + count
        for happened in graph.selection["happened"] if graph.selection else ():
            verdict.tried[happened["change"]] = verdict.tried.get(happened["change"], 0) + 1
    found = differences(mine, known.eager, known.exact)
    events = [
        Finding("event", item.kind, str(item)[:1500], backend=item.backend)
        for item in report.events
        if item.kind in _TROUBLE and not (setting == "live" and _EDITED in item.detail) and _NEGATED not in item.detail
    ]
    if not found and not events:
        return verdict
    shaken: list[Observation] = []
    if any(item.kind == "value" for item in found):
        shaken = [run(program, mode=Shaken(place)) for place in range(_SHAKEN)]
        found = differences(mine, known.eager, known.exact, shaken)
        for loop in LOOPS if found else ():
            other = truth(program, loop)
            labels = {(item.kind, item.label) for item in differences(mine, other.eager, other.exact, shaken)}
            found = [item for item in found if (item.kind, item.label) in labels]
    found += events
    if not found:
        return verdict
    return _whose(program, verdict, found, known, shaken, controls)


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """A folder for what one program's mixture stores; what it still writes, or loads and stores, then is lost."""
    with tempfile.TemporaryDirectory(prefix="mixbackend-fuzz-", ignore_cleanup_errors=True) as folder:
        yield folder
        finish(_WRITTEN_WITHIN_S)


def _whose(
    program: Program, verdict: Verdict, found: list[Finding], known: Truth, shaken: list[Observation], controls: bool
) -> Verdict:
    for control in ("aot_eager", "inductor") if controls else ("aot_eager",):
        seen = run(program, _with(program, control))
        alike = {(item.kind, item.label) for item in differences(seen, known.eager, known.exact, shaken)}
        # What inductor gets wrong of the whole program, it gets wrong of a region.
        rest = [
            item for item in found if (item.kind, item.label) not in alike and not (alike and item.backend == control)
        ]
        if not rest:
            verdict.status, verdict.findings = "torch", found
            return verdict
        found = rest
    clear = [item for item in found if item.kind != "value" or not _is_shaky(item, known, shaken)]
    verdict.status, verdict.findings = ("ours", clear) if clear else ("unclear", found)
    return verdict


def _is_shaky(finding: Finding, known: Truth, shaken: list[Observation]) -> bool:
    eager = known.eager.tensors[finding.label]
    if not eager.is_floating_point():
        return False
    exact = known.exact.tensors.get(finding.label, eager)
    size = float(exact.double().nan_to_num(0, 0, 0).abs().max())
    moved = [
        (item.tensors[finding.label].double() - eager.double()) for item in shaken if finding.label in item.tensors
    ]
    if exact.shape == eager.shape:
        moved.append(exact.double() - eager.double())
    return any(float(item.nan_to_num(0, 0, 0).abs().max()) > _TELLING * size for item in moved)


def _with(program: Program, backend: Any) -> Compile:
    # Inductor draws eager's random numbers when it is told to.
    options: Any = {"fallback_random": True} if backend == "inductor" else None

    def compile_it(model: torch.nn.Module) -> Any:
        return torch.compile(model, backend=backend, dynamic=program.dynamic, options=options)

    return compile_it


def quiet() -> None:
    """Torch and we log what goes wrong; the findings say it."""
    logging.disable(logging.CRITICAL)
