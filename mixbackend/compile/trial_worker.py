"""One candidate in a process of its own: ``python -m mixbackend.compile.trial_worker``.

Place: started by ``tuner``; a crash, a hang or running out of memory here costs only this candidate.
Input: a ``TrialRequest`` as a JSON line on standard input; then lines ``{"seconds", "first", "regions"}``, which say
how long a slice is, whether it is the first, and whether regions are to be timed before it.
Output: one JSON line each on standard output: ready, when it is compiled; then the median and the least seconds
of a call in each slice, and what each region took. Everything that libraries print goes to standard error.
Invariants: the graph goes through the same pipeline as in the asking process, verification included; a candidate with
a wrong region is not timed; every run starts from the inputs and random numbers of the first.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.contracts.region_text import read_region_text
from mixbackend.contracts.torch_compat import ask_deterministic
from mixbackend.execute.state_restore import Again, Changes, RepeatedCall
from mixbackend.execute.timed_calls import TIMED_CALLS
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.host.processes import Answer, begin_answering, limit_memory
from mixbackend.select.calls import as_in_training, timed_calls
from mixbackend.select.decision import Decision
from mixbackend.select.request import TrialRequest
from mixbackend.select.timings import RegionTiming, timings_of
from mixbackend.select.values import read_values
from mixbackend.storage.background_io import finish

_WARM_CALLS, _WARM_S = 5, 1.0
_SHARING_S = 5.0
_LONGEST_DETAIL = 500


class WrongResultError(Exception):
    """A region of the candidate did not compute what eager does."""


def main() -> None:
    """Answer one request; see the module's docstring."""
    line, send = begin_answering()
    request = TrialRequest.from_line(line)
    limit_memory(request.memory_bytes)
    torch.set_num_threads(request.threads)
    try:
        with torch.no_grad():
            serve(request, send)
    except WrongResultError as error:
        send({"status": "wrong", "detail": str(error)[:_LONGEST_DETAIL]})
    except MemoryError as error:
        send({"status": "out_of_memory", "detail": str(error)})
    except Exception as error:
        send({"status": "failed", "detail": f"{type(error).__name__}: {error}"[:_LONGEST_DETAIL]})


def serve(request: TrialRequest, send: Callable[[Answer], None]) -> None:
    """Compile and say so; then time slices until the input ends. Others compile until the first of them begins."""
    mixture, again = _compiled(request)
    # After the answer this process may be ended at any moment: what it compiled reaches the remote cache before.
    finish(_SHARING_S)
    send({"status": "pass"})
    for line in sys.stdin:
        message = json.loads(line)
        if message["first"]:
            _warm_up(again)
        regions = _time_regions(mixture, again) if message["regions"] else ()
        answer = time_slice(again, message["seconds"])
        send({**answer, "regions": [timing.to_dict() for timing in regions]})


def _warm_up(again: Again) -> None:
    start = time.perf_counter()
    for _ in range(_WARM_CALLS):
        again()
        if time.perf_counter() - start > _WARM_S:
            break


def time_slice(again: Again, seconds: float) -> Answer:
    """One call that brings the caches back, then timed calls for about ``seconds``."""
    again()
    timed = timed_calls(again.run, seconds, again.put_back)
    return {"status": "pass", "median_s": statistics.median(timed), "least_s": min(timed)}


def _time_regions(mixture: Mixture, again: Again) -> tuple[RegionTiming, ...]:
    mixture.time_regions()
    for _ in range(TIMED_CALLS):
        again()
    return tuple(timing for record in mixture.report().graphs for timing in timings_of(record))


def _compiled(request: TrialRequest) -> tuple[Mixture, Again]:
    region = read_region_text(request.graph_file.read_text())
    ask_deterministic(region.deterministic)
    roles = {item.name: PlaceholderRole(item.role) for item in region.inputs}
    mixture = Mixture(load_config(request.config_file))
    # Before the graph is handed to what compiles it.
    call = RepeatedCall(read_values(request.folder), Changes.of_region(region))
    compiled = mixture.compile_captured(region.graph_module, region.phase, roles, Decision(request.choice))
    call.by(compiled)()  # the first run, with verification and the binding of constants
    wrong = [str(event) for event in mixture.report().events if event.kind == "verify_failed"]
    if wrong:
        raise WrongResultError("; ".join(wrong))
    return mixture, call.by(compiled) if region.phase == "inference" else call.by(compiled, as_in_training)


if __name__ == "__main__":
    main()
