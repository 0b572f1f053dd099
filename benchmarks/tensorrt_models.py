"""Whole models with TensorRT in the mixture, beside TensorRT alone and inductor's best mode; needs a GPU and TensorRT.

    python -m mixbackend.benchmarks.tensorrt_models --output tensorrt.jsonl --rows resnet50,bert --minutes 9

Place: a command of its own; rows are those of ``gpu_models``. Each row runs in two processes one after the other, with
one cache folder: the first builds engines, measures and changes a weight; the second says how long a start from stored
engines takes. First processes build side by side (``--jobs``; so first calls take longer than alone) and are timed one
at a time while nobody builds; second ones run alone. The machine's rates are measured before, or known already. Results
are lines of JSON, printed and appended at once; run again, it goes on with what is missing.
Method: a way is warmed up and held against float64 beside eager; then all ways take turns, each turn a block of calls
between two CUDA events; the median over the turns counts, and quartiles tell the spread.
Invariants: figures are compared within one row, whose ways took turns in one process; a way that fails keeps its reason
and costs only itself.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import mixbackend
from mixbackend.benchmarks.gpu import calibrate, keep, read
from mixbackend.benchmarks.gpu_models import ROWS
from mixbackend.benchmarks.gpu_timing import alone, beside_others, timed_in_turns
from mixbackend.benchmarks.machine_rates import FROZEN_RATES, begin_anew

MODELS = ("resnet50", "mobilenetv3-large", "convnext-tiny", "vit-b16", "bert", "swin-tiny")
"""The rows of ``docs/tensorrt.md``: one figure each."""
WAYS = ("eager", "inductor", "tensorrt", "ours")
"""Inductor in the mode that was asked for; TensorRT wherever it can run; the mixture. The last three replay CUDA
graphs."""
_ALONE = {"backends": ["tensorrt", "eager"], "rules": [{"match": {}, "prefer": "tensorrt", "factor": 0.001}]}
_WARM_CALLS = 6
_LEAST_S = 60.0

Call = Callable[[], Tensor]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows that are missing, or one row in this process; 0 if none failed."""
    given = _parser().parse_args(arguments)
    if given.table:
        print(table(read(given.output)))
        return 0
    if given.folder is not None:
        (name,) = given.rows
        print(json.dumps(measure(name, given.folder, given.again, given.inductor)), flush=True)
        return 0
    end = time.monotonic() + 60.0 * given.minutes
    done = {record["row"] for record in read(given.output)}
    left = [name for name in given.rows if name not in done]
    if left:
        calibrate(min(given.calibration, end - time.monotonic()))
    failed = False
    while left and end - time.monotonic() > _LEAST_S:
        batch, left = left[: given.jobs], left[given.jobs :]
        for record in _in_processes(batch, end, given.inductor):
            failed |= "failed" in record
            keep(record, given.output)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="whole models with TensorRT, side by side with others")
    parser.add_argument("--output", type=Path, default=Path("tensorrt.jsonl"), help="results so far and to come")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(MODELS), help="names with commas")
    parser.add_argument("--jobs", type=int, default=3, help="rows that build side by side")
    parser.add_argument("--minutes", type=float, default=9.0, help="no row is begun with less than a minute left")
    parser.add_argument(
        "--inductor", choices=("max-autotune", "reduce-overhead"), default="max-autotune", help="its mode"
    )
    parser.add_argument("--calibration", type=float, default=120.0, help="seconds for rates that are not known yet")
    parser.add_argument("--table", action="store_true", help="print the file as a table, and run nothing")
    parser.add_argument("--folder", type=Path, help="measure one row here, with this cache folder")
    parser.add_argument("--again", action="store_true", help="only the start from what the folder holds")
    return parser


def _in_processes(names: Sequence[str], end: float, inductor: str) -> Iterator[dict[str, Any]]:
    """Rows measured, and their second starts."""
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(len(names)) as pool:
        folders = {name: str(Path(root, name)) for name in names}

        def first(name: str) -> dict[str, Any]:
            return _process(name, folders[name], end, ["--inductor", inductor])

        for name, record in zip(names, list(pool.map(first, names)), strict=True):
            if "failed" not in record:
                record["again"] = _process(name, folders[name], max(end, time.monotonic() + _LEAST_S), ["--again"])
            yield record


def _process(name: str, folder: str, end: float, more: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", __spec__.name, "--rows", name, "--folder", folder, *more]
    limit_s, environment = max(end - time.monotonic(), _LEAST_S), {**os.environ, **FROZEN_RATES}
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit_s, env=environment)
    except subprocess.TimeoutExpired:
        return {"row": name, "failed": "the time was up"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"row": name, "failed": f"exit code {done.returncode}"}
    return dict(json.loads(lines[-1]))


# --- one row, in its process -----------------------------------------------------------------------------------------


def measure(name: str, folder: Path, again: bool, inductor: str = "max-autotune") -> dict[str, Any]:
    """All ways of a row in turns, inductor in a mode; with ``again`` the first call of the mixture alone."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if not again:
        begin_anew(folder)
    lock = folder.parent / "compiling.lock"
    with beside_others(lock):
        record, calls, changed = _prepared(name, folder, again, inductor)
    if again:
        return record
    with alone(lock):
        for way, samples in timed_in_turns(calls).items():
            low, middle, high = statistics.quantiles(samples, n=4)
            record["ways"][way] |= {"ms": round(middle, 4), "low_ms": round(low, 4), "high_ms": round(high, 4)}
    with beside_others(lock):
        record["update"] = changed()
    return record


def _prepared(
    name: str, folder: Path, again: bool, inductor: str
) -> tuple[dict[str, Any], dict[str, Call], Callable[[], dict[str, Any]]]:
    """What is known before calls are timed, the calls, and what changes a weight and tells what follows."""
    module, inputs = ROWS[name].load(torch.device("cuda:0"))
    with torch.no_grad():
        wide = copy.deepcopy(module).double()
        reference = wide(*(value.double() if value.is_floating_point() else value for value in inputs))
    del wide
    mixtures = {
        "tensorrt": mixbackend.auto({**_ALONE, "cache": {"dir": str(folder)}}),
        "ours": mixbackend.auto({"cache": {"dir": str(folder)}}),
    }
    record: dict[str, Any] = {"row": name, "torch": torch.__version__, "tensorrt": _version(), "inductor": inductor}
    record["ways"] = {}
    calls: dict[str, Call] = {}
    for way in ("ours",) if again else WAYS:
        call = _call(way, module, inputs, mixtures, inductor)
        record["ways"][way] = found = _warmed(call, reference)
        if way in mixtures:
            found |= _told(mixtures[way])
        if "failed" not in found:
            calls[way] = call
    ours = {way: calls[way] for way in mixtures if way in calls}
    return record, calls, partial(_after_update, module, inputs, ours)


def _version() -> str:
    return next(info.version or info.reason for info in mixbackend.backends() if info.name == "tensorrt")


def _call(way: str, module: nn.Module, inputs: Sequence[Tensor], mixtures: Mapping[str, Any], inductor: str) -> Call:
    compiled: Any = module
    if way == "inductor":
        compiled = torch.compile(module, mode=inductor)
    elif way in mixtures:
        compiled = torch.compile(module, backend=mixtures[way], mode="reduce-overhead")

    def run() -> Tensor:
        with torch.no_grad():
            return compiled(*inputs)

    return run


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
    notes = [note for graph in report.graphs for region in graph.regions for note in region.notes]
    return {"ops": dict(ops), "notes": notes[:12], "events": [str(event)[:300] for event in report.events][-12:]}


def _after_update(module: nn.Module, inputs: Sequence[Tensor], calls: Mapping[str, Call]) -> dict[str, Any]:
    """Seconds of the first call after a weight has changed, and how far its result is from eager's then."""
    found: dict[str, Any] = {}
    weight = next(parameter for parameter in module.parameters() if parameter.dim() > 1)
    with torch.no_grad():
        before = module(*inputs)
        weight.mul_(1.5)
        expected = module(*inputs)
        found["changes"] = _distance(expected, before)
        for way, call in calls.items():
            begin = time.perf_counter()
            result = call()
            torch.cuda.synchronize()
            found[way] = {"s": round(time.perf_counter() - begin, 2), "error": _distance(result, expected)}
        weight.div_(1.5)
    return found


# --- the table -------------------------------------------------------------------------------------------------------


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """Milliseconds per way, and the mixture over the better of the other two; their geometric means."""
    lines = ["| model | eager | inductor | TensorRT | mixture | over the better | second start s |", "|---" * 7 + "|"]
    ratios: list[float] = []
    for record in records:
        ways = record.get("ways", {})
        times = {way: ways.get(way, {}).get("ms") for way in WAYS}
        others = [times[way] for way in ("inductor", "tensorrt") if times[way] is not None]
        ratio = times["ours"] / min(others) if times["ours"] is not None and others else None
        ratios += [ratio] if ratio is not None else []
        again = record.get("again", {}).get("ways", {}).get("ours", {}).get("first_s", "")
        cells = [record["row"], *(_cell(times[way]) for way in WAYS), _cell(ratio), str(again)]
        lines.append(f"| {' | '.join(cells)} |")
    if ratios:
        lines.append(f"\ngeometric mean over the better: {math.exp(statistics.fmean(map(math.log, ratios))):.3f}")
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "failed" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    raise SystemExit(main())
