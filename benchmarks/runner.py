"""Runs the model suite: every model and phase in a process of its own, resumable, with a time and a memory limit.

Place: behind ``mixbackend bench suite``. Input: ``SuiteOptions``. Output: one record per case, also in the results
file; ``tables`` makes summaries of them.
Invariants: a case that cannot run costs only itself; a failure is run again with ``aot_eager``, for what fails without
us is not our failure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mixbackend.benchmarks.accuracy import Phase
from mixbackend.benchmarks.models import find, models
from mixbackend.benchmarks.protocol import MIXTURE, MODULE, NOT_JUDGED, Request
from mixbackend.benchmarks.results import Record, ResultFile, code_version, key_of
from mixbackend.processes import ask

REFERENCE_BACKEND = "aot_eager"
PHASES: tuple[Phase, ...] = ("inference", "training")


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """What to run and how.

    Attributes:
        models, families: names; empty means all.
        phases: ``inference``, ``training``; models without parameters are never trained.
        backend: ``mixbackend``, or a peer that torch.compile knows.
        configuration: for ``mixbackend.auto``.
        timeout_s: per case, compilation included.
        memory_gb: private memory of one case, in 10^9 bytes.
        jobs: cases at a time; each gets its share of the cores. Timings need one.
        output: the results file.
        always_training_mode: see ``protocol.Request``.
        retry_failed: run cases again whose last record did not pass.
        label: stands for the code version in the keys, to resume although code changed.
    """

    models: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = PHASES
    backend: str = MIXTURE
    configuration: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 600.0
    memory_gb: float = 12.0
    jobs: int = 1
    output: Path = Path("results/suite.jsonl")
    always_training_mode: bool = False
    retry_failed: bool = False
    label: str = ""

    @property
    def made_by(self) -> str:
        """The part of a key that says which code ran."""
        return self.label or code_version()

    @property
    def threads(self) -> int:
        """Of one case."""
        return max(1, (os.cpu_count() or 1) // self.jobs)


@dataclass(frozen=True, slots=True)
class Case:
    """One model in one phase."""

    model: str
    family: str
    phase: Phase


Work = Callable[[Case, SuiteOptions, Callable[[str], None]], Record]
"""Runs one case and gives its record, without the identity that ``run_cases`` adds."""


def cases(options: SuiteOptions) -> list[Case]:
    """The cases that the options select, in the suite's order.

    Raises:
        KeyError: a model or a family is not known.
    """
    unknown = set(options.families) - {entry.family for entry in models()}
    if unknown:
        raise KeyError(f"no family {', '.join(sorted(unknown))}; there are hf, timm and torchbench")
    chosen = [find(name) for name in options.models] or list(models())
    return [
        Case(entry.name, entry.family, phase)
        for entry in chosen
        if not options.families or entry.family in options.families
        for phase in options.phases
        if entry.train or phase == "inference"
    ]


def run_suite(options: SuiteOptions, console: Console) -> list[Record]:
    """Judge every case by upstream's accuracy rule."""
    return run_cases("accuracy", check_case, options, console)


def run_cases(kind: str, work: Work, options: SuiteOptions, console: Console) -> list[Record]:
    """Run what the results file does not hold yet, under a progress bar; records in the order of the cases."""
    todo = cases(options)
    file = ResultFile(options.output)
    settings = {"configuration": dict(options.configuration), "training_mode": options.always_training_mode}
    keys = [key_of(kind, case.model, case.phase, options.backend, settings, options.made_by) for case in todo]
    known = [file.get(key) for key in keys]
    open_cases = [
        (case, key)
        for case, key, record in zip(todo, keys, known, strict=True)
        if record is None or (options.retry_failed and record.get("status") != "pass")
    ]
    if len(open_cases) < len(todo):
        console.print(f"{len(todo) - len(open_cases)} of {len(todo)} cases are in {options.output} already")
    with _progress(console) as progress, ThreadPoolExecutor(options.jobs) as pool:
        bar = progress.add_task(kind, total=len(open_cases), note="")

        def perform(case: Case, key: str) -> Record:
            def show(text: str) -> None:
                progress.update(bar, note=f"{case.model} {case.phase} {text}")

            show("")
            identity = {"key": key, "kind": kind, "model": case.model, "family": case.family, "phase": case.phase}
            how = {"backend": options.backend, **settings, "made_by": options.made_by}
            return {**identity, **how, **work(case, options, show)}

        futures = [pool.submit(perform, case, key) for case, key in open_cases]
        for future in as_completed(futures):
            file.append(future.result())
            progress.advance(bar)
    return [record for key in keys if (record := file.get(key)) is not None]


def check_case(case: Case, options: SuiteOptions, show: Callable[[str], None]) -> Record:
    """Judge one case; where it fails, learn whether ``aot_eager`` fails as well."""
    answer = ask(_request(case, options, options.backend), MODULE, options.timeout_s, options.threads)
    if answer["status"] == "pass" or answer["status"] in NOT_JUDGED or options.backend == REFERENCE_BACKEND:
        return {**answer, REFERENCE_BACKEND: None}
    show(f"failed; asking {REFERENCE_BACKEND}")
    reference = ask(_request(case, options, REFERENCE_BACKEND), MODULE, options.timeout_s, options.threads)
    return {**answer, REFERENCE_BACKEND: {key: reference.get(key, "") for key in ("status", "detail")}}


def _request(case: Case, options: SuiteOptions, backend: str) -> Request:
    return Request(
        task="accuracy",
        model=case.model,
        phase=case.phase,
        backend=backend,
        configuration=options.configuration if backend == MIXTURE else {},
        always_training_mode=options.always_training_mode,
        memory_bytes=int(options.memory_gb * 1e9),
    )


def _progress(console: Console) -> Progress:
    columns: Iterable[Any] = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    return Progress(*columns, console=console)
