"""One row of the TensorRT benchmark in a process of its own.

Place: ``python -m mixbackend.benchmarks.tensorrt_row STAGE ROW`` is started by ``tensorrt_models``, a process for each
stage of a row, with one folder for all of them.
Output: parts of the row's record on standard output, a line of JSON each, as soon as they are known: a process that is
ended loses what was not printed, and nothing else.
Stages: ``build`` calls each way for the first time and marks it in the folder when it is ready; ``measure`` takes ways
that are ready, from what the folder holds, and times them in turns; a line on standard input later, it changes a
weight; ``again`` makes the first call of a way in a process of its own.
Method: a way is warmed up and held against float64 beside eager; then all ways take turns, each turn a block of calls
between two CUDA events; the median over the turns counts, and quartiles tell the spread.
Invariants: figures are compared within one process, in which the ways took turns; a way that fails costs only itself.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import mixbackend
from mixbackend.benchmarks.gpu_models import ROWS
from mixbackend.benchmarks.gpu_timing import alone, beside_others, quartiles, timed_in_turns
from mixbackend.benchmarks.machine_rates import begin_anew

WAYS = ("eager", "inductor", "tensorrt", "ours")
"""Inductor in the mode that was asked for; TensorRT wherever it can run; the mixture. The last three replay CUDA
graphs."""
BUILT = WAYS[1:]
MIXED = WAYS[2:]
"""Those that take engines from the folder."""
_ALONE = {"backends": ["tensorrt", "eager"], "rules": [{"match": {}, "prefer": "tensorrt", "factor": 0.001}]}
_WARM_CALLS = 6

Call = Callable[[], Tensor]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one stage."""
    parser = argparse.ArgumentParser(description="one row of the TensorRT benchmark")
    parser.add_argument("stage", choices=("build", "measure", "again"))
    parser.add_argument("name")
    parser.add_argument("--folder", type=Path, required=True, help="of all rows")
    parser.add_argument("--inductor", default="max-autotune", help="its mode")
    parser.add_argument("--ways", type=lambda text: text.split(","), default=list(WAYS))
    given = parser.parse_args(arguments)
    row = Row(given.name, given.folder, given.inductor)
    if given.stage == "build":
        build(row, given.ways)
    elif given.stage == "measure":
        measure(row, given.ways)
    else:
        row.tell({"again": {way: found for way, found, _ in row.prepared(given.ways)}})


def marker(folder: Path, name: str, way: str) -> Path:
    """A file that is there when a way is ready."""
    return folder / name / f"{way}.ready"


@dataclass(frozen=True)
class Row:
    """A row's model and its ways.

    Attributes:
        name: of the row.
        root: folder of all rows.
        inductor: its mode.
    """

    name: str
    root: Path
    inductor: str

    def tell(self, part: Mapping[str, Any]) -> None:
        """Print a part of the record."""
        print(json.dumps({"row": self.name, **part}), flush=True)

    @property
    def folder(self) -> Path:
        """What mixtures keep."""
        return self.root / self.name

    @cached_property
    def loaded(self) -> tuple[nn.Module, Sequence[Tensor]]:
        """Module and inputs."""
        return ROWS[self.name].load(torch.device("cuda:0"))

    @cached_property
    def mixtures(self) -> Mapping[str, Any]:
        """By way."""
        cache = {"cache": {"dir": str(self.folder)}}
        return {"tensorrt": mixbackend.auto({**_ALONE, **cache}), "ours": mixbackend.auto(cache)}

    @cached_property
    def reference(self) -> Tensor:
        """In float64."""
        module, inputs = self.loaded
        with torch.no_grad():
            wide = copy.deepcopy(module).double()
            return wide(*(value.double() if value.is_floating_point() else value for value in inputs))

    def call(self, way: str) -> Call:
        """What calls the model in this way."""
        module, inputs = self.loaded
        compiled: Any = module
        if way == "inductor":
            compiled = torch.compile(module, mode=self.inductor)
        elif way in self.mixtures:
            compiled = torch.compile(module, backend=self.mixtures[way], mode="reduce-overhead")

        def run() -> Tensor:
            with torch.no_grad():
                return compiled(*inputs)

        return run

    def prepared(self, ways: Sequence[str]) -> list[tuple[str, dict[str, Any], Call | None]]:
        """Ways that are warmed up, with what was found; no call for those that fail."""
        results = []
        assert self.reference is not None, "made before any first call is timed"
        for way in ways:
            call = self.call(way)
            found = _warmed(call, self.reference)
            if way in self.mixtures:
                found |= _told(self.mixtures[way])
            results.append((way, found, None if "failed" in found else call))
        return results


def build(row: Row, ways: Sequence[str]) -> None:
    """Make ways ready that are not, each told when it is."""
    row.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not any(marker(row.root, row.name, way).exists() for way in WAYS):
        begin_anew(row.folder)
    for way in ways:
        if marker(row.root, row.name, way).exists():
            continue
        ((_, found, call),) = row.prepared([way])
        built = {"built_s" if key == "first_s" else key: value for key, value in found.items()}
        if call is not None:
            marker(row.root, row.name, way).write_text(json.dumps(built))
        row.tell({"ways": {way: built}})


def measure(row: Row, ways: Sequence[str]) -> None:
    """Time ways that are ready; then what follows a change of a weight."""
    lock = row.root / f"compiling{os.environ.get('CUDA_VISIBLE_DEVICES', '')}.lock"
    calls: dict[str, Call] = {}
    with beside_others(lock):
        row.tell({"torch": torch.__version__, "tensorrt": _version(), "inductor": row.inductor})
        for way in ways:
            ((_, found, call),) = row.prepared([way])
            row.tell({"ways": {way: found}})
            if call is not None:
                calls[way] = call
    with alone(lock):
        timed = {way: quartiles(samples) for way, samples in timed_in_turns(calls).items()}
    row.tell({"ways": timed})
    if sys.stdin.readline():
        after_update(row, {way: calls[way] for way in row.mixtures if way in calls})


def after_update(row: Row, calls: Mapping[str, Call]) -> None:
    """Seconds of the first call after a weight has changed, and how far its result is from eager's then."""
    module, inputs = row.loaded
    weight = next(parameter for parameter in module.parameters() if parameter.dim() > 1)
    with torch.no_grad():
        before = module(*inputs)
        weight.mul_(1.5)
        expected = module(*inputs)
        row.tell({"update": {"changes": _distance(expected, before)}})
        for way, call in calls.items():
            begin = time.perf_counter()
            result = call()
            torch.cuda.synchronize()
            seconds = round(time.perf_counter() - begin, 2)
            row.tell({"update": {way: {"s": seconds, "error": _distance(result, expected)}}})


def _version() -> str:
    return next(info.version or info.reason for info in mixbackend.backends() if info.name == "tensorrt")


def _warmed(call: Call, reference: Tensor) -> dict[str, Any]:
    try:
        begin = time.perf_counter()
        result = call()
        torch.cuda.synchronize()
        first_s = time.perf_counter() - begin
        for _ in range(_WARM_CALLS):
            result = call()
        torch.cuda.synchronize()
        return {"first_s": round(first_s, 2), "error": _distance(result, reference)}
    except Exception as error:
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {str(error)[:300]}"}


def _distance(result: Tensor, reference: Tensor) -> float:
    """Largest distance over the largest magnitude."""
    gap = (result.double() - reference.double()).abs().max() / reference.double().abs().max().clamp_min(1e-30)
    return float(f"{float(gap):.3g}")


def _told(mixture: Any) -> dict[str, Any]:
    """What ran where, and what went other than planned."""
    report = mixture.report()
    regions = [region for graph in report.graphs for region in graph.plan.regions]
    ops = Counter(region.backend for region in regions for _ in region.nodes)
    counts = Counter(region.backend for region in regions)
    notes = [note for graph in report.graphs for region in graph.regions for note in region.notes]
    events = [str(event)[:300] for event in report.events][-12:]
    return {"ops": dict(ops), "regions": dict(counts), "notes": notes[:12], "events": events}


if __name__ == "__main__":
    main()
