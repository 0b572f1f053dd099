"""The regions of one model in a process of its own: ``python -m mixbackend.benchmarks.costs_worker``.

Place: started by ``costs``; a crash, a hang or running out of memory here costs only this process.
Input: a ``CostRequest`` as a JSON line on standard input. Output: one JSON line on standard output: every region with
what it was estimated to take and what it took. Everything that libraries print goes to standard error.
Method: the model is called until it gets no faster; then its regions are timed where they stand, between their
neighbours, in blocks of calls: ``measured_s`` is the median of the blocks' medians. Regions with one text (repeated
layers) are one row.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mixbackend.benchmarks.one_model.protocol import arguments_in_line
from mixbackend.benchmarks.one_model.worker import TaskFailedError, describe_error, failure_status
from mixbackend.benchmarks.peers import executors, machine, reference
from mixbackend.benchmarks.peers.models import PeerModel
from mixbackend.benchmarks.peers.request import PeerCase
from mixbackend.benchmarks.peers.suite_models import find_model
from mixbackend.benchmarks.peers.worker import warm_up
from mixbackend.execute.timed_calls import TIMED_CALLS
from mixbackend.host.processes import Answer, begin_answering, limit_memory
from mixbackend.reporting.summary import short_ops

MODULE = "mixbackend.benchmarks.costs_worker"
"""What a process runs."""


@dataclass(frozen=True, slots=True)
class CostRequest:
    """What a process is asked.

    Attributes:
        case: model, batch, phase and element type.
        configuration: given to ``mixbackend.auto``.
        threads: of every pool; 0 takes what torch finds.
        memory_bytes: limit of private memory; 0 is none.
        blocks: how often every region is timed for a few calls.
        warm_up_s: longest time of warming up.
    """

    case: PeerCase
    configuration: Mapping[str, Any]
    threads: int = 0
    memory_bytes: int = 0
    blocks: int = 9
    warm_up_s: float = 5.0

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_line(cls, line: str) -> CostRequest:
        """The inverse of ``to_line``."""
        data = arguments_in_line(line, cls)
        return cls(**{**data, "case": PeerCase(**data["case"])})


def main() -> None:
    """Answer one request; see the module's docstring."""
    line, send = begin_answering()
    request = CostRequest.from_line(line)
    limit_memory(request.memory_bytes)
    if request.threads:
        torch.set_num_threads(request.threads)
    try:
        send(serve(request, find_model))
    except Exception as error:
        send({"status": failure_status(TaskFailedError("failed", error)), "detail": describe_error(error)})


def serve(request: CostRequest, find: Callable[[str], PeerModel]) -> Answer:
    """Compile, warm up, and time the regions."""
    import mixbackend

    model = find(request.case.model)
    module, inputs = reference.load(model, request.case)
    arguments = ("mixture", request.configuration, module, inputs)
    if request.case.phase == "training":
        executor = executors.training(*arguments, model.loss)
    else:
        executor = executors.inference(*arguments, request.threads or torch.get_num_threads())
    executor.run()
    calls, steady = warm_up(executor.run, request.warm_up_s)
    mixture = mixbackend.auto(dict(request.configuration))  # equal configurations give the same object
    before = machine.Usage.now()
    timed: dict[tuple[str, str], list[float]] = {}
    for _ in range(request.blocks):
        mixture.time_regions()
        for _ in range(TIMED_CALLS):
            executor.run()
        for graph, region in _regions(executor.report()):
            timed.setdefault((graph["id"], region["id"]), []).append(region["measured_s"])
    others = before.cores_of_others(machine.Usage.now())
    report = executor.report()
    return {
        "status": "pass",
        "regions": _rows(report, timed),
        "untimed": sum(region["measured_s"] is None for _, region in _regions(report)),
        "events": sorted({event["kind"] for event in report["events"]}),
        "call_s": _call_seconds(executor.run, request.blocks),
        "warm_up": {"calls": calls, "steady": steady},
        "cores_of_others": others,
    }


def _regions(report: Mapping[str, Any]) -> Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    return ((graph, region) for graph in report["graphs"] for region in graph["regions"])


def _rows(report: Mapping[str, Any], timed: Mapping[tuple[str, str], list[float]]) -> list[dict[str, Any]]:
    """A row per text of a region; equal regions are in one."""
    groups: dict[tuple[str, str], list[tuple[Mapping[str, Any], Mapping[str, Any], list[float]]]] = {}
    for graph, region in _regions(report):
        seconds = [value for value in timed.get((graph["id"], region["id"]), []) if value is not None]
        if seconds and region["estimated_s"] is not None:
            key = (graph["id"], region["reused_from"] or region["id"])
            groups.setdefault(key, []).append((graph, region, seconds))
    return [_row(group) for group in groups.values()]


def _row(group: list[tuple[Mapping[str, Any], Mapping[str, Any], list[float]]]) -> dict[str, Any]:
    graph, region, _ = group[0]
    seconds = [value for _, _, values in group for value in values]
    named = json.dumps([graph["phase"], region["nodes"]])
    return {
        "phase": graph["phase"],
        "region": region["id"],
        "content": hashlib.sha256(named.encode()).hexdigest()[:16],
        "backend": region["backend"],
        "nodes": len(region["nodes"]),
        "ops": short_ops(region["ops"]),
        "equal": len(group),
        "estimated_s": statistics.median(item["estimated_s"] for _, item, _ in group),
        "measured_s": statistics.median(seconds),
        "spread": _spread(seconds),
    }


def _spread(seconds: list[float]) -> float | None:
    """Half the distance of the quartiles over the median."""
    if len(seconds) < 2:
        return None
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / 2 / middle


def _call_seconds(run: Callable[[], Any], blocks: int) -> float:
    """Median of whole calls, without timing their regions."""
    seconds = []
    for _ in range(blocks * TIMED_CALLS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
