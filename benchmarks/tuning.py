"""Does tuning agree with itself: the same models tuned again and again, each time with nothing remembered.

Place: behind ``mixbackend bench tuning``. Input: cases, how often, ``Options``, a results file. Output: records.
Method: each try has a cache folder of its own, with a database that holds the rates of this machine and nothing else. A
first process tunes at its first call; a second one with the same folder finds the decision. Compiled kernels and
inductor's are shared between tries, as they lie outside the folder: a first run never seems longer than it is. Where
tries came to different placements, one process of each takes turns with the others, and their times are compared.
Resuming: what the file holds is not run again; folders of placements that are still to be compared are kept.
Invariants: a try that fails keeps its reason and counts as one that does not agree. Units: seconds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mixbackend import registry
from mixbackend.benchmarks.machine_rates import begin_anew
from mixbackend.benchmarks.peers.catalogue import TUNED
from mixbackend.benchmarks.peers.request import PeerCase
from mixbackend.benchmarks.peers.turns import (
    READY,
    Options,
    Show,
    ask_reference,
    peer_request,
    take_turns,
    variables_for,
)
from mixbackend.benchmarks.results import Record, ResultFile, code_version, key_of
from mixbackend.host.processes import Answer, Worker, ask
from mixbackend.storage import private_folder

_KIND = "tuning 1"
"""Changes with the meaning of records."""

EXPECTED_TRY_S = 100.0
"""Of one try, for the bar's time left."""


def run(
    cases: Sequence[PeerCase],
    tries: int,
    budget_s: float,
    options: Options,
    file: ResultFile,
    label: str,
    show: Show,
    is_over: Callable[[], bool] = lambda: False,
) -> list[dict[str, Any]]:
    """Run what is missing; per case: the case, its tries so far, and how its placements compare.

    Args:
        cases: models to tune.
        tries: how often each.
        budget_s: of the search, for one graph.
        options: threads, limits, rounds and seconds of the comparison.
        file, label: where records are kept, and under which name those of changing code.
        show: see ``turns.Show``.
        is_over: asked before every try and comparison.
    """
    return [_run_case(_Job(case, budget_s, options, file, label), tries, show, is_over) for case in cases]


def expected_s(
    cases: Sequence[PeerCase], tries: int, budget_s: float, options: Options, file: ResultFile, label: str
) -> float:
    """Seconds that the missing tries should take, for the bar."""
    jobs = [_Job(case, budget_s, options, file, label) for case in cases]
    return EXPECTED_TRY_S * sum(job.known(number) is None for job in jobs for number in range(tries))


@dataclasses.dataclass(frozen=True)
class _Job:
    """One case with everything that its tries need."""

    case: PeerCase
    budget_s: float
    options: Options
    file: ResultFile
    label: str

    def key(self, what: str) -> str:
        """Identity of a record."""
        settings = {
            "case": dataclasses.asdict(self.case),
            "threads": self.options.threads,
            "environment": self.options.environment,
            "budget_s": self.budget_s,
            "backends": list(self.options.backends),
        }
        made_by = self.label or code_version()
        return key_of(_KIND, self.case.model, self.case.phase, what, settings, made_by)

    def known(self, number: int) -> Record | None:
        """The record of a try."""
        return self.file.get(self.key(f"try {number}"))

    @property
    def folder(self) -> Path:
        """Where the cache folders of the tries lie."""
        return private_folder() / "bench-tuning" / self.key("folder")

    def cache(self, number: int) -> Path:
        """Cache folder of a try."""
        return self.folder / f"try-{number}"

    def configuration(self, number: int) -> Mapping[str, Any]:
        """What ``mixbackend.auto`` is told in a try."""
        search = {"mode": "measure", "budget_s": self.budget_s}
        backends = [*self.options.backends, registry.FALLBACK]
        return {"backends": backends, "search": search, "cache": {"dir": str(self.cache(number))}}


def _run_case(job: _Job, tries: int, show: Show, is_over: Callable[[], bool]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="mixbackend-tuning-") as folder:
        trouble = _try_all(job, tries, folder, show, is_over)
        records = [record for number in range(tries) if (record := job.known(number)) is not None]
        placements = list(dict.fromkeys(record["placement"] for record in records if record["placement"]))
        finished = len(records) == tries and not trouble
        plans = _compared(job, records, placements, folder, show) if finished and not is_over() else None
    if plans is not None:
        shutil.rmtree(job.folder, ignore_errors=True)
    return {"case": dataclasses.asdict(job.case), "tries": records, "plans": plans, "trouble": trouble}


def _try_all(job: _Job, tries: int, folder: str, show: Show, is_over: Callable[[], bool]) -> str:
    """Make the tries that are missing; why none can be made, or empty."""
    seen: set[str] = set()
    referenced = False
    for number in range(tries):
        record = job.known(number)
        if record is None:
            if is_over():
                break
            if not referenced:
                reference = _reference(job, folder, show)
                if reference:
                    return reference
                referenced = True
            record = _try(job, number, folder, show)
            job.file.append({"key": job.key(f"try {number}"), "try": number, "model": job.case.model, **record})
        if record["placement"] in seen or not record["placement"]:
            shutil.rmtree(job.cache(number), ignore_errors=True)
        seen.add(record["placement"])
    return ""


def _reference(job: _Job, folder: str, show: Show) -> str:
    show(f"{job.case}: reference", 0.0)
    answer = ask_reference(job.case, folder, job.options)
    return "" if answer["status"] == "pass" else f"{answer['status']}: {answer.get('detail', '')}"


def _try(job: _Job, number: int, folder: str, show: Show) -> dict[str, Any]:
    """Tune with nothing remembered, then once more with what that remembered."""
    shutil.rmtree(job.cache(number), ignore_errors=True)
    begin_anew(job.cache(number))
    show(f"{job.case}: try {number + 1}, first run", 0.0)
    first = _ask(job, number, folder)
    show(f"{job.case}: try {number + 1}, second run", EXPECTED_TRY_S * 0.9)
    second = _ask(job, number, folder) if first["status"] in READY else first
    show(f"{job.case}: try {number + 1}", EXPECTED_TRY_S * 0.1)
    placements = [(answer.get("parts") or {}).get("placement", "") for answer in (first, second)]
    worst = second if first["status"] == "pass" else first
    return {
        "status": worst["status"],
        "detail": worst.get("detail", ""),
        "placement": placements[0],
        "chosen": (first.get("parts") or {}).get("chosen", []),
        "first_s": first.get("first_call_s"),
        "second_s": second.get("first_call_s") if second is not first else None,
        "second_agrees": placements[0] == placements[1],
    }


def _ask(job: _Job, number: int, folder: str) -> Answer:
    options = dataclasses.replace(job.options, warm_up_s=0.0)
    request = peer_request(job.case, TUNED, job.configuration(number), folder, options)
    variables = variables_for(TUNED, options.environment)
    return ask(request, options.module, options.timeout_s, options.threads, variables)


def _compared(
    job: _Job, records: Sequence[Record], placements: Sequence[str], folder: str, show: Show
) -> list[dict[str, Any]]:
    """Rounds of every placement that came out, taken in turns; none where there is only one."""
    key = job.key("plans " + hashlib.sha256(" ".join(placements).encode()).hexdigest())
    known = job.file.get(key)
    if known is None:
        rounds = _rounds(job, records, placements, folder, show) if len(placements) > 1 else {}
        plans = [{"placement": name, "rounds_s": rounds.get(name, [])} for name in placements]
        known = {"key": key, "model": job.case.model, "turns": uuid.uuid4().hex[:12], "plans": plans}
        job.file.append(known)
    return list(known["plans"])


def _rounds(
    job: _Job, records: Sequence[Record], placements: Sequence[str], folder: str, show: Show
) -> dict[str, list[float]]:
    """Seconds by placement; a process that comes to another placement than its try did is left out."""
    if not Path(folder, "reference.pt").exists() and _reference(job, folder, show):
        return {}
    numbers = {name: next(item["try"] for item in records if item["placement"] == name) for name in placements}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name, number in numbers.items():
            show(f"{job.case}: comparing {len(placements)} placements", 0.0)
            request = peer_request(job.case, TUNED, job.configuration(number), folder, job.options)
            variables = variables_for(TUNED, job.options.environment)
            worker = Worker(request, job.options.module, job.options.threads, variables)
            stack.callback(worker.close)
            ready = worker.answer(job.options.timeout_s)
            if ready["status"] in READY and (ready.get("parts") or {}).get("placement") == name:
                worker.pause()
                workers[name] = worker
            else:
                worker.close()
        turns = take_turns(job.case, workers, job.options, show)
    return {name: turn.rounds_s for name, turn in turns.items() if turn.failure is None}
