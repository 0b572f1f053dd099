"""Runs the cases that a results file does not hold yet, and gives all records back.

Place: between the command and ``turns``. Input: cases, peers, ``Options``, a file. Output: a record per case and peer.
Resuming: a case is run for the peers that have no record. Records of peers that are not ours count for the versions of
the packages they are made of; ours count for our sources, so that after a change only ours run again, beside eager.
A label in place of our sources keeps results of changing code together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from mixbackend.benchmarks.peers.catalogue import is_compiled, is_ours
from mixbackend.benchmarks.peers.request import PHASES, PeerCase
from mixbackend.benchmarks.peers.suite_models import is_of_suite
from mixbackend.benchmarks.peers.turns import Options, Show, expected_s, time_case
from mixbackend.benchmarks.results import Record, ResultFile, code_version, installed_version, key_of
from mixbackend.host.processes import Answer

_KIND = "peer 2"
"""Changes with the meaning of records."""

LIMITS = ("flops_per_s", "bytes_per_s")

_PACKAGES = ("torch", "onnxruntime", "openvino", "onnxscript", "timm", "transformers")

RunCase = Callable[[PeerCase, Sequence[str], Options, Show], dict[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is left to do.

    Attributes:
        work: cases with the peers that have no record yet.
        expected_s: seconds that they should take.
    """

    work: tuple[tuple[PeerCase, tuple[str, ...]], ...]
    expected_s: float


def cases_for(
    models: Sequence[str],
    trained: Sequence[str],
    batches: Sequence[int],
    phases: Sequence[str],
    dtypes: Sequence[str],
    own_batch: Callable[[str], int],
) -> tuple[PeerCase, ...]:
    """Every combination: inference at each batch size, models of the suite and training steps at the model's own."""
    cases = []
    for phase in PHASES:
        for dtype in dtypes if phase in phases else ():
            for model in models if phase == "inference" else trained:
                own = phase == "training" or is_of_suite(model)
                sizes = [own_batch(model)] if own else batches
                cases += [PeerCase(model, size, phase, dtype) for size in sizes]
    return tuple(cases)


def record_key(case: PeerCase, peer: str, options: Options, label: str) -> str:
    """The identity of a peer's record."""
    settings = {
        "case": dataclasses.asdict(case),
        "threads": options.threads,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "environment": options.environment if is_ours(peer) else "",
    }
    if options.guards != "checked" and is_compiled(peer):
        settings["guards"] = options.guards
    made_by = (label or code_version()) if is_ours(peer) else package_versions()
    return key_of(_KIND, case.model, case.phase, peer, settings, made_by)


@cache
def package_versions() -> str:
    """Versions of what peers are made of; a package that is missing has none."""
    return " ".join(f"{name} {installed_version(name) or '-'}" for name in _PACKAGES)


def plan(cases: Sequence[PeerCase], peers: Sequence[str], options: Options, file: ResultFile, label: str) -> Plan:
    """What the file does not hold yet."""
    work = []
    for case in cases:
        missing = tuple(peer for peer in peers if file.get(record_key(case, peer, options, label)) is None)
        if missing:
            work.append((case, missing))
    return Plan(tuple(work), sum(expected_s(case, missing, options) for case, missing in work))


def best_limits(dtype: str, threads: int, found: Answer, file: ResultFile) -> dict[str, float]:
    """The limits of the machine: a busy one measures less, so the highest rates that the file knows count.

    Args:
        dtype, threads: what they hold for.
        found: the answer of ``turns.measure_machine``; one that failed adds nothing.
        file: where they are kept.
    """
    key = key_of("machine 1", "", "", "", {"dtype": dtype, "threads": threads}, package_versions())
    known = file.get(key) or {}
    fresh = found if found["status"] == "pass" else {}
    limits = {name: max(float(known.get(name, 0.0)), float(fresh.get(name, 0.0))) for name in LIMITS}
    if not all(limits.values()):
        return {}
    file.append({"key": key, "dtype": dtype, "threads": threads, **limits})
    return limits


def run(
    cases: Sequence[PeerCase],
    peers: Sequence[str],
    options: Options,
    file: ResultFile,
    label: str,
    show: Show,
    run_case: RunCase = time_case,
    is_over: Callable[[], bool] = lambda: False,
) -> list[Record]:
    """Run what is missing, write it down case by case, and return the records of all cases and peers.

    Args:
        cases, peers, options, file, label: as ``plan`` takes them.
        show: see ``turns.Show``.
        run_case: times one case.
        is_over: asked before every case; those for which no time is left stay without records.
    """
    for case, missing in plan(cases, peers, options, file, label).work:
        if is_over():
            break
        found = run_case(case, missing, options, show)
        for peer, facts in found.items():
            if peer in missing:
                key = record_key(case, peer, options, label)
                file.append({"key": key, "peer": peer, **dataclasses.asdict(case), **facts})
    keys = [record_key(case, peer, options, label) for case in cases for peer in peers]
    return [record for key in keys if (record := file.get(key)) is not None]
