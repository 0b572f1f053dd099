"""A process that judges programs: ``python -m mixbackend.benchmarks.fuzz.worker``.

Place: started by ``campaign``; a crash or a hang here costs only one program. Input: a line of JSON per program
(``campaign.Task``). Output: a line of JSON each, a row of the results.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from mixbackend.benchmarks.fuzz.judging import Verdict, judge, quiet, valid_program
from mixbackend.benchmarks.fuzz.program import Program
from mixbackend.benchmarks.fuzz.script import script
from mixbackend.benchmarks.fuzz.settings import configuration
from mixbackend.benchmarks.fuzz.shrinking import shrink
from mixbackend.host.processes import Answer, begin_answering

CRASH = "crash.txt"
"""In the cache folder: where a process was when it crashed."""
EAGER = "eager.txt"
"""In the cache folder as long as eager alone runs a program: a crash is then torch's."""
_FINDINGS_KEPT = 8


def row(request: Mapping[str, Any]) -> dict[str, Any]:
    """Judge one program, and shrink it if it fails."""
    seed, setting = int(request["seed"]), str(request["setting"])
    begin = time.monotonic()
    with _eager_alone():
        program = valid_program(seed, int(request["longest"]))
    verdict = judge(program, setting, seed)
    told = _told(program, verdict) | {"seed": seed, "setting": setting, "seconds": round(time.monotonic() - begin, 3)}
    if verdict.status == "ours" and request.get("shrink_s"):
        program, verdict = _shrunk(program, verdict, setting, seed, float(request["shrink_s"]))
        told["status"], told["findings"] = (
            verdict.status,
            [item.to_dict() for item in verdict.findings[:_FINDINGS_KEPT]],
        )
    if verdict.status == "ours":
        heading = [f"seed {seed}, setting {setting}, torch {torch.__version__}", *map(str, verdict.findings[:3])]
        told["script"] = script(program, configuration(setting, seed), heading, live=setting == "live")
        told["program"] = program.to_dict()
    return told


@contextlib.contextmanager
def _eager_alone() -> Iterator[None]:
    mark = _cache() / EAGER
    mark.touch()
    try:
        yield
    finally:
        mark.unlink()


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", "."))


def _told(program: Program, verdict: Verdict) -> dict[str, Any]:
    return {
        "status": verdict.status,
        "findings": [item.to_dict() for item in verdict.findings[:_FINDINGS_KEPT]],
        "backends": verdict.backends,
        "regions": verdict.regions,
        "tried": verdict.tried,
        "settled": verdict.settled,
        "grad": any(call.grad for call in program.calls),
        "dynamic": program.dynamic is True,
        "statements": len(program.statements),
    }


def _shrunk(program: Program, verdict: Verdict, setting: str, seed: int, seconds: float) -> tuple[Program, Verdict]:
    wanted = verdict.signature

    def fails(candidate: Program) -> bool:
        try:
            found = judge(candidate, setting, seed, controls=False)
        except Exception:  # a candidate that cannot even be written down
            return False
        return found.status == "ours" and found.signature == wanted

    smaller = shrink(program, fails, seconds)
    final = judge(smaller, setting, seed)
    # While shrinking, only aot_eager is asked; where inductor fails alike in the end, the whole program counts.
    return (smaller, final) if final.status == "ours" else (program, verdict)


def main() -> None:
    """Answer until there are no more requests."""
    line, send = begin_answering()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    quiet()
    (_cache() / EAGER).unlink(missing_ok=True)
    with (_cache() / CRASH).open("w", encoding="utf-8") as stack:
        faulthandler.enable(stack, all_threads=False)
        _serve(line, send)


def _serve(line: str, send: Callable[[Answer], None]) -> None:
    while line.strip():
        request = json.loads(line)
        try:
            answer = row(request)
        except Exception:  # the fuzzer's own fault, told as such
            answer = {"seed": request["seed"], "setting": request["setting"], "status": "broken"}
            answer["detail"] = traceback.format_exc()[-1500:]
        send(answer)
        torch.compiler.reset()
        gc.collect()
        line = sys.stdin.readline()


if __name__ == "__main__":
    main()
