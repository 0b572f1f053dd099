"""Runs the model suite: every model, phase and precision in a process, resumable, with limits of time and memory.

Place: behind ``mixbackend bench suite``. Input: ``SuiteOptions``. Output: one record per case, also in the results
file; ``tables`` makes summaries of them.
Invariants: a case that cannot run costs only itself; a failure is run again with ``aot_eager``, for what fails without
us is not our failure. A case for which there was no time has no record, so that the next run takes it up. On a GPU the
machine's rates are measured before the first case, and all cases plan with them.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mixbackend.benchmarks.gpu import calibrate
from mixbackend.benchmarks.machine_rates import FROZEN_RATES
from mixbackend.benchmarks.models.order import small_first
from mixbackend.benchmarks.models.registry import find, models
from mixbackend.benchmarks.one_model.accuracy import Phase
from mixbackend.benchmarks.one_model.precision import PRECISIONS, Precision
from mixbackend.benchmarks.one_model.protocol import MIXTURE, MODULE, NOT_JUDGED, Request
from mixbackend.benchmarks.results import Record, ResultFile, code_version, key_of
from mixbackend.benchmarks.staff import OutOfTimeError, Staff
from mixbackend.host.processes import Answer

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
        precisions: in which a phase runs, where it knows them; see ``precision``.
        device: where the models run.
        mode: of ``torch.compile``.
        small_first: in the order of ``models.order``.
        timeout_s: per case, compilation included.
        minutes: for the whole run, after which cases are ended or not begun; 0 is no limit.
        calibration_s: of that, for rates of a GPU that are not known yet.
        memory_gb: private memory of one case, in 10^9 bytes; 0 is no limit.
        jobs: cases at a time; each gets its share of the cores. Timings need one.
        keep: cases that one process may serve, one after the other.
        output: the results file.
        always_training_mode: see ``protocol.Request``.
        retry_failed: run cases again if their last record did not pass.
        label: stands for the code version in the keys, to resume although code changed.
    """

    models: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = PHASES
    backend: str = MIXTURE
    configuration: Mapping[str, Any] = field(default_factory=dict)
    precisions: tuple[Precision, ...] = ("float32",)
    device: str = "cpu"
    mode: str = "default"
    small_first: bool = False
    timeout_s: float = 600.0
    minutes: float = 0.0
    calibration_s: float = 60.0
    memory_gb: float = 12.0
    jobs: int = 1
    keep: int = 1
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

    @property
    def settings(self) -> Mapping[str, Any]:
        """The part of a key that says how a case ran, beside its precision."""
        modes = {"training_mode": self.always_training_mode, "device": self.device, "mode": self.mode}
        return {"configuration": dict(self.configuration), **modes}


@dataclass(frozen=True, slots=True)
class Case:
    """One model in one phase and precision."""

    model: str
    family: str
    phase: Phase
    precision: Precision = "float32"


Work = Callable[[Case, SuiteOptions, Callable[[str], None]], Record]
"""Runs one case and gives its record, without the identity that ``run_cases`` adds."""
Ask = Callable[[Request, float], Answer]
"""Has a request served within a time limit; see ``Staff.ask``."""


def cases(options: SuiteOptions) -> list[Case]:
    """The cases that the options select, in the suite's order.

    Raises:
        KeyError: a model or a family is not known.
    """
    unknown = set(options.families) - {entry.family for entry in models()}
    if unknown:
        raise KeyError(f"no family {', '.join(sorted(unknown))}; there are hf, timm and torchbench")
    chosen = [find(name) for name in options.models] or list(models())
    if options.small_first:
        chosen = small_first(chosen)
    return [
        Case(entry.name, entry.family, phase, precision)
        for entry in chosen
        if not options.families or entry.family in options.families
        for phase in options.phases
        if entry.train or phase == "inference"
        for precision in options.precisions
        if precision in PRECISIONS[phase]
    ]


def run_suite(options: SuiteOptions, console: Console) -> list[Record]:
    """Judge every case by upstream's accuracy rule."""
    end = time.monotonic() + 60.0 * options.minutes if options.minutes else math.inf
    if options.device != "cpu" and options.backend == MIXTURE:
        calibrate(min(options.calibration_s, end - time.monotonic()))
    variables = _variables(options)
    with Staff(MODULE, options.keep, options.threads, variables, end) as staff:
        return run_cases("accuracy", partial(check_case, ask=staff.ask), options, console)


def run_cases(kind: str, work: Work, options: SuiteOptions, console: Console) -> list[Record]:
    """Run what the results file does not hold yet, under a progress bar; records in the order of the cases."""
    todo = cases(options)
    file = ResultFile(options.output)
    keys = [_key(kind, case, options) for case in todo]
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
            identity = {"key": key, "kind": kind, **asdict(case)}
            how = {"backend": options.backend, **options.settings, "made_by": options.made_by}
            return {**identity, **how, **work(case, options, show)}

        futures = [pool.submit(perform, case, key) for case, key in open_cases]
        unfinished = 0
        for future in as_completed(futures):
            try:
                finished = future.result()
            except OutOfTimeError:
                unfinished += 1
                continue
            file.append(finished)
            progress.advance(bar)
            _tell(finished, console)
    if unfinished:
        console.print(f"no time for {unfinished} cases; run again to go on with them")
    return [record for key in keys if (record := file.get(key)) is not None]


def check_case(case: Case, options: SuiteOptions, show: Callable[[str], None], ask: Ask) -> Record:
    """Judge one case; where it fails, learn whether ``aot_eager`` fails as well, if there is time."""
    answer = ask(_request(case, options, options.backend), options.timeout_s)
    if answer["status"] == "pass" or answer["status"] in NOT_JUDGED or options.backend == REFERENCE_BACKEND:
        return {**answer, REFERENCE_BACKEND: None}
    show(f"failed; asking {REFERENCE_BACKEND}")
    try:
        reference = ask(_request(case, options, REFERENCE_BACKEND), options.timeout_s)
    except OutOfTimeError:
        return {**answer, REFERENCE_BACKEND: None}
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
        device=options.device,
        precision=case.precision,
        mode=options.mode if backend != REFERENCE_BACKEND else "default",
    )


def _key(kind: str, case: Case, options: SuiteOptions) -> str:
    settings = {**options.settings, "precision": case.precision}
    return key_of(kind, case.model, case.phase, options.backend, settings, options.made_by)


def _variables(options: SuiteOptions) -> Mapping[str, str]:
    """The environment of processes on a GPU: rates stay as measured, cuBLAS gives equal results every time, and
    compilers start no more threads than the process has cores."""
    if options.device == "cpu":
        return {}
    exact = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    return {**FROZEN_RATES, **exact, "TORCHINDUCTOR_COMPILE_THREADS": str(options.threads)}


def _tell(record: Record, console: Console) -> None:
    """A line per case where no bar can be shown."""
    if not console.is_terminal:
        what = " ".join(str(record[key]) for key in ("model", "phase", "precision", "status"))
        console.print(f"{what} {record.get('seconds', 0.0):.0f} s", markup=False, highlight=False, soft_wrap=True)


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
