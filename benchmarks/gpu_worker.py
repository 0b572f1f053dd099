"""One row of the GPU benchmark in a process of its own: every way of running it, checked and timed in turns.

Place: started by ``benchmarks.gpu`` with the name of a row and of the ways. Output: lines of JSON, each a part of the
row's record: its numbers, each way once it is compiled, that all are ready; after a line on standard input, when
nothing else uses the GPU, the times.
Method: a way is warmed up; its results are held against float64, beside eager's; then all ways take turns, each turn a
block of calls between two CUDA events; the median over the turns counts, and quartiles tell the spread. Inference runs
under ``torch.no_grad``. A training step is forward with loss under autocast (bfloat16), backward, and plain SGD.
Memory is what a way adds to what is there: ``first_memory_gb`` until it is warm, ``memory_gb`` in a call after that.
Invariants: a way that fails keeps its reason and costs only itself.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import mixbackend
from mixbackend.benchmarks.gpu_memory import gigabytes_since, reserved_bytes
from mixbackend.benchmarks.gpu_models import ROWS, GpuRow
from mixbackend.benchmarks.gpu_timing import quartiles, timed_in_turns
from mixbackend.benchmarks.machine_rates import begin_anew, probe_machine
from mixbackend.benchmarks.peers.models import Inputs, WithLoss
from mixbackend.benchmarks.row_pool import READY, TIMED
from mixbackend.reporting import Report

WAYS: Mapping[str, Mapping[str, Any]] = {
    "eager": {},
    "inductor": {"backend": "inductor"},
    "inductor-graphs": {"backend": "inductor", "mode": "reduce-overhead"},
    "ours": {"backend": "mixbackend"},
    "ours-graphs": {"backend": "mixbackend", "mode": "reduce-overhead"},
    "inductor-max": {"backend": "inductor", "mode": "max-autotune"},
    "ours-max": {"backend": "mixbackend", "mode": "max-autotune"},
}
"""Arguments of ``torch.compile`` by name."""
CALIBRATE = "calibrate"
"""In place of a row: measure the machine's rates, in about as many seconds as the next word says."""
DEFAULT_WAYS = ("eager", "inductor", "inductor-graphs", "ours", "ours-graphs")

_WARM_CALLS = 6
_LEARNING_RATE = 1e-9
"""So small that all ways train the same weights side by side."""

Call = Callable[[], Sequence[Tensor]]


def main(name: str, ways: Sequence[str], turns: int) -> None:
    """Measure a row and tell what is found as it comes."""
    row = ROWS[name]
    module, inputs = row.load(torch.device("cuda:0"))
    reference = _reference(row, module, inputs)
    _tell(name, {"phase": row.phase, **_numbers(row, module, inputs)})
    calls: dict[str, Call] = {}
    with tempfile.TemporaryDirectory() as folder:
        begin_anew(Path(folder))
        ours = mixbackend.auto({"cache": {"dir": folder}})
        for way in ways:
            found, call = _prepared(way, row, module, inputs, reference, ours)
            if call is not None:
                calls[way] = call
            _tell(name, {"ways": {way: found}})
        _tell(name, {READY: True})
        sys.stdin.readline()
        times = {way: quartiles(samples) for way, samples in timed_in_turns(calls, turns).items()}
        _tell(name, {"ways": times, TIMED: True})


def _tell(name: str, found: Mapping[str, Any]) -> None:
    print(json.dumps({"row": name, **found}), flush=True)


def _prepared(
    way: str, row: GpuRow, module: nn.Module, inputs: Inputs, reference: Sequence[Tensor], ours: Any
) -> tuple[dict[str, Any], Call | None]:
    """Compile and warm up one way."""
    try:
        options = {**WAYS[way], **({"backend": ours} if _is_ours(way) else {})}
        call = _call(options, row, module, inputs)
        before = reserved_bytes()
        begin = time.perf_counter()
        results = call()
        torch.cuda.synchronize()
        found: dict[str, Any] = {"first_s": round(time.perf_counter() - begin, 2)}
        for _ in range(_WARM_CALLS):
            results = call()
        torch.cuda.synchronize()
        found["first_memory_gb"] = gigabytes_since(before)
        found["error"] = _distance(results, reference)
        del results
        reserved_bytes()
        call()
        found["memory_gb"] = gigabytes_since(before)
        if _is_ours(way):
            found |= _told(ours.report())
    except Exception as error:
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {str(error)[:300]}"}, None
    return found, call


def _is_ours(way: str) -> bool:
    return WAYS[way].get("backend") == "mixbackend"


def _call(options: Mapping[str, Any], row: GpuRow, module: nn.Module, inputs: Inputs) -> Call:
    if row.phase == "inference":
        compiled: Any = torch.compile(module, **options) if options else module

        def infer() -> Sequence[Tensor]:
            with torch.no_grad():
                return (compiled(*inputs),)

        return infer
    whole = WithLoss(module, row.loss)
    step: Any = torch.compile(whole, **options) if options else whole
    optimizer = torch.optim.SGD(module.parameters(), lr=_LEARNING_RATE)
    first = _first_weight(module)

    def train() -> Sequence[Tensor]:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = step(*inputs)
        loss.backward()
        gradient = first.grad
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        assert gradient is not None
        return loss.detach(), gradient

    return train


def _reference(row: GpuRow, module: nn.Module, inputs: Inputs) -> Sequence[Tensor]:
    """What float64 gives."""
    wide = copy.deepcopy(module).double()
    values = tuple(value.double() if value.is_floating_point() else value for value in inputs)
    if row.phase == "inference":
        with torch.no_grad():
            return (wide(*values),)
    loss = WithLoss(wide, row.loss)(*values)
    loss.backward()
    gradient = _first_weight(wide).grad
    assert gradient is not None
    return loss.detach(), gradient


def _first_weight(module: nn.Module) -> nn.Parameter:
    """The one with a gradient that goes through all layers."""
    return next(parameter for parameter in module.parameters() if parameter.requires_grad)


def _distance(results: Sequence[Tensor], reference: Sequence[Tensor]) -> list[float]:
    """Largest distance from float64, over the largest magnitude, per result."""
    pairs = zip(results, reference, strict=True)
    return [
        float(f"{float((mine.double() - exact).abs().max() / exact.abs().max().clamp_min(1e-30)):.3g}")
        for mine, exact in pairs
    ]


def _numbers(row: GpuRow, module: nn.Module, inputs: Inputs) -> dict[str, float]:
    """FLOP of one run, and the bytes that it must at least read."""
    run: Any = module if row.phase == "inference" else WithLoss(module, row.loss)
    with FlopCounterMode(display=False) as counter:
        if row.phase == "inference":
            with torch.no_grad():
                run(*inputs)
        else:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = run(*inputs)
            loss.backward()
    module.zero_grad(set_to_none=True)
    held = [*module.parameters(), *module.buffers(), *inputs]
    return {
        "gflop": round(counter.get_total_flops() / 1e9, 2),
        "weights_mb": round(sum(t.nbytes for t in held) / 1e6, 1),
    }


def _told(report: Report) -> dict[str, Any]:
    """What ran where, and what went other than planned."""
    regions = Counter(region.backend for graph in report.graphs for region in graph.plan.regions)
    ops = Counter(region.backend for graph in report.graphs for region in graph.plan.regions for _ in region.nodes)
    events = [str(event)[:300] for event in report.events]
    layouts = [graph.layout.chosen for graph in report.graphs]
    estimated_ms = round(1e3 * sum(graph.plan.estimated_s for graph in report.graphs), 4)
    told = {"regions": dict(regions), "ops": dict(ops), "layouts": layouts, "events": events[-12:]}
    # Of the comparisons at first calls: the choice, and the milliseconds of all that were tried.
    took = [event.detail for event in report.events if event.kind == "tuning"]
    return {**told, "estimated_ms": estimated_ms, "took": took}


if __name__ == "__main__":
    if sys.argv[1] == CALIBRATE:
        for subject in probe_machine("cuda", float(sys.argv[2])):
            print(f"probed on a busy machine: {subject}", file=sys.stderr)
    else:
        main(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]))
