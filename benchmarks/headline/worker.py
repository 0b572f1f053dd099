"""One case of the headline table in a process of its own: ``python -m mixbackend.benchmarks.headline.worker``.

Place: started by ``run`` with the case, the device, turns and seconds to settle. Output: lines of JSON, each a part of
the case's record (``row_records``): what is expected, each way once it is compiled and judged, that all are ready;
after a line on standard input, when no other row is at work, the times.
Method: eager's two runs and float64 say what is right; every way has a copy of the module, makes the calls that are
judged by upstream's rule, and is then timed on it as it is. Ways of ours are warmed up (``Mixture.warm_up``), for so
many seconds at most. Then all ways take turns, each a block of calls between two marks of the GPU.
What is timed is the whole step: forward, in training with loss and backward, in training mode; gradients begin as
``None``. Compiled is the forward with the loss. TF32 is off. A way that is wrong keeps its times and its verdict.
Invariants: a way that raises keeps its reason and costs only itself. No result and no gradient of a way is held while
another runs: what both record into CUDA graphs shares memory.
"""

from __future__ import annotations

import copy
import faulthandler
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from mixbackend.benchmarks.gpu_memory import gigabytes_since, reserved_bytes
from mixbackend.benchmarks.gpu_timing import quartiles, timed_in_turns
from mixbackend.benchmarks.headline.cases import WAYS, Case, Way, case_of
from mixbackend.benchmarks.machine_rates import begin_anew
from mixbackend.benchmarks.models.entry import Entry, Loaded
from mixbackend.benchmarks.models.registry import find
from mixbackend.benchmarks.one_model import steps
from mixbackend.benchmarks.one_model.expected import Expected, expected_of
from mixbackend.benchmarks.one_model.protocol import MIXTURE, Request
from mixbackend.benchmarks.one_model.settle import settle
from mixbackend.benchmarks.one_model.worker import CompiledStep, describe_error
from mixbackend.benchmarks.row_pool import READY, TIMED
from mixbackend.calibrate.timing import seconds_by_marks

_DETAIL = 400
"""Characters of an error that a record keeps."""
_LETTING_GO_S = 2.0
"""For calls to let go of what was compared when trying was stopped."""
_KEPT = ("nodes", "regions", "events", "challengers")
"""Of the placement that is timed."""

Call = Callable[[], None]


def main(name: str, device: str, turns: int, settle_s: float) -> None:
    """Measure a case, and tell what is found as it comes."""
    case = case_of(name)

    def tell(found: Mapping[str, Any]) -> None:
        print(json.dumps({"row": name, **found}), flush=True)

    try:
        entry = find(case.model)
        loaded = steps.load(entry, case.phase, device, always_training_mode=True)
        calls = steps.CALLS_WITH_GRAPHS
        expected, loaded = expected_of(entry, case.phase, case.precision, device, loaded, calls)
    except Exception as error:
        traceback.print_exc()
        tell({"not_judged": describe_error(error)[:_DETAIL], READY: True, TIMED: True})
        return
    tell({"family": entry.family, "eager_repeats": expected.judge(expected.first).verdict == "pass"})
    ready: dict[str, Call] = {}
    compiled: dict[str, CompiledStep] = {}
    with tempfile.TemporaryDirectory() as folder:
        begin_anew(Path(folder))
        for way in case.order():
            found, call, step = _prepared(way, case, entry, loaded, expected, device, folder)
            if call is not None and step is not None:
                ready[way], compiled[way] = call, step
            tell({"ways": {way: found}})
        ours = [ready[way] for way, (backend, _) in WAYS.items() if backend == MIXTURE and way in ready]
        begin = time.perf_counter()
        settled = settle(lambda: [call() for call in ours], settle_s) is not None
        took_s = round(time.perf_counter() - begin, 2)
        settle(lambda: [call() for call in ours], _LETTING_GO_S)
        tell({"settled": settled, "stopped": not settled, "warm_up_s": took_s, READY: True})
        sys.stdin.readline()
        watch = seconds_by_marks if device == "cuda" else _seconds_by_clock
        times = {way: quartiles(samples) for way, samples in timed_in_turns(ready, turns, watch).items()}
        placed = {way: step.placement() for way, step in compiled.items()}
        kept = {way: {key: found[key] for key in _KEPT if key in found} for way, found in placed.items()}
        tell({"ways": {way: {**times[way], **kept[way]} for way in times}, TIMED: True})


def _prepared(
    way: Way, case: Case, entry: Entry, loaded: Loaded, expected: Expected, device: str, folder: str
) -> tuple[dict[str, Any], Call | None, CompiledStep | None]:
    """Compile a way on a copy of the module and judge it; what was found, a call to time, and what it calls."""
    backend, mode = WAYS[way]
    configuration = {"cache": {"dir": folder}} if backend == MIXTURE else {}
    request = Request(
        "speed", case.model, case.phase, backend, configuration, device=device, precision=case.precision, mode=mode
    )
    module, args, kwargs = loaded
    module = copy.deepcopy(module)
    try:
        step = CompiledStep(entry, request, exact_random_stream=False, backward_inside=False)
        before = reserved_bytes()
        results = steps.run_in_place(entry, case.phase, (module, args, kwargs), step, steps.CALLS_WITH_GRAPHS)
        judgement = expected.judge(results)
        error, eager_error = expected.errors(results)
        found: dict[str, Any] = {
            "verdict": judgement.verdict,
            "mismatches": [str(mismatch)[:_DETAIL] for mismatch in judgement.mismatches[:2]],
            "error": error,
            "eager_error": eager_error,
            "first_s": round(step.seconds[0], 2),
            "first_memory_gb": gigabytes_since(before),
        }
        del results

        # Walking through the module takes as long as a small model's call.
        parameters = list(module.parameters()) if case.phase == "training" else []

        def call() -> None:
            with torch.set_grad_enabled(case.phase == "training"):
                step(module, args, kwargs)
            for parameter in parameters:
                parameter.grad = None

        module.zero_grad(set_to_none=True)

        before = reserved_bytes()
        call()
        found["memory_gb"] = gigabytes_since(before)
        return found, call, step
    except Exception as error:
        traceback.print_exc()
        return {"failed": describe_error(error)[:_DETAIL]}, None, None


def _seconds_by_clock(call: Call, count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - begin


if __name__ == "__main__":
    faulthandler.enable()
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
