"""How good the cost model is: estimated against measured seconds of every region, with priors and with probed rates.

Place: behind ``mixbackend bench costs``. Input: cases, ``Options``, a results file. Output: a record per process.
Method: each model runs as the mixture and with every backend alone (eager where that cannot), each in a process of its
own, so that every backend's regions are seen, not only those that looked cheap. Once with ``priors``: an empty database
and no probing; once ``calibrated``: the rates of this machine and nothing else. Verification is off.
Resuming: what the file holds is not run again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from mixbackend import registry
from mixbackend.benchmarks.costs_worker import MODULE, CostRequest
from mixbackend.benchmarks.machine_rates import begin_anew
from mixbackend.benchmarks.peers.catalogue import MIXTURE, SINGLE, cache_folder, configuration_of
from mixbackend.benchmarks.peers.request import PeerCase
from mixbackend.benchmarks.peers.turns import Options, Show, variables_for
from mixbackend.benchmarks.results import Record, ResultFile, code_version, key_of
from mixbackend.host.processes import ask

Costs = Literal["priors", "calibrated"]
COSTS: tuple[Costs, ...] = ("priors", "calibrated")

EXPECTED_S = 25.0
"""Of one process, for the bar's time left."""

_KIND = "costs 2"
"""Changes with the meaning of records."""


@dataclasses.dataclass(frozen=True, slots=True)
class CostRun:
    """One process: a case under one peer, planned with one kind of costs."""

    case: PeerCase
    peer: str
    costs: Costs

    def __str__(self) -> str:
        return f"{self.case}: {self.peer}, {self.costs}"


def runs_for(cases: Sequence[PeerCase], backends: Sequence[str], costs: Sequence[Costs]) -> list[CostRun]:
    """Every case as the mixture and with each backend alone, with each kind of costs."""
    peers = (MIXTURE, *(f"{SINGLE}{name}" for name in backends))
    return [CostRun(case, peer, kind) for case in cases for peer in peers for kind in costs]


def record_key(run: CostRun, options: Options, blocks: int, label: str) -> str:
    """The identity of a run's record."""
    settings = {
        "case": dataclasses.asdict(run.case),
        "threads": options.threads,
        "environment": options.environment,
        "blocks": blocks,
        "costs": run.costs,
        "backends": list(options.backends),
    }
    return key_of(_KIND, run.case.model, run.case.phase, run.peer, settings, label or code_version())


def missing(runs: Sequence[CostRun], options: Options, blocks: int, file: ResultFile, label: str) -> list[CostRun]:
    """What the file does not hold yet."""
    return [run for run in runs if file.get(record_key(run, options, blocks, label)) is None]


def measure(
    runs: Sequence[CostRun],
    options: Options,
    blocks: int,
    file: ResultFile,
    label: str,
    show: Show,
    is_over: Callable[[], bool] = lambda: False,
    module: str = MODULE,
) -> list[Record]:
    """Run what is missing, and return the records of all runs that have one.

    Args:
        runs: see ``runs_for``.
        options: threads, limits, environment.
        blocks: how often every region is timed for a few calls.
        file, label: where records are kept, and under which name those of changing code.
        show: see ``turns.Show``.
        is_over: asked before every process.
        module: what processes run.
    """
    for run in missing(runs, options, blocks, file, label):
        if is_over():
            break
        show(str(run), 0.0)
        answer = _ask(run, options, blocks, module)
        show(str(run), EXPECTED_S)
        facts = {"peer": run.peer, "costs": run.costs, **dataclasses.asdict(run.case)}
        file.append({"key": record_key(run, options, blocks, label), **facts, **answer})
    keys = (record_key(run, options, blocks, label) for run in runs)
    return [record for key in keys if (record := file.get(key)) is not None]


def _ask(run: CostRun, options: Options, blocks: int, module: str) -> dict[str, Any]:
    folder = cache_folder(run.peer).with_name(f"costs-{run.peer}")
    begin_anew(folder, with_rates=run.costs == "calibrated")
    configuration: Mapping[str, Any] = {
        "backends": [*options.backends, registry.FALLBACK],
        **(configuration_of(run.peer, options.backends) or {}),
        "cache": {"dir": str(folder)},
        "verify": {"when": "off"},
    }
    memory = int(options.memory_gb * 1e9)
    request = CostRequest(run.case, configuration, options.threads, memory, blocks, options.warm_up_s)
    variables = variables_for(run.peer, options.environment)
    return ask(request, module, options.timeout_s, options.threads, variables)
