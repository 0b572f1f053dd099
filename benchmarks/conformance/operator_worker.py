"""Operator samples in a process of its own: ``python -m mixbackend.benchmarks.conformance.operator_worker``.

Place: started by ``operators``; a crash or a hang here costs only a few samples. Input: a ``WorkerSetting`` as the
first line on standard input, then lines ``{"operator", "dtype", "first", "count"}``. Output: a JSON line for each: what
was seen, and whether the operator has further samples.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from mixbackend.benchmarks.conformance.operator_check import check
from mixbackend.benchmarks.conformance.operator_sample import OperatorSample
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.contracts.torch_compat import operator_database
from mixbackend.host.processes import Answer, begin_answering, limit_memory
from mixbackend.reporting.events import ORDINARY

MODULE = "mixbackend.benchmarks.conformance.operator_worker"


@dataclass(frozen=True, slots=True)
class WorkerSetting:
    """How a process works.

    Attributes:
        configuration: as ``mixbackend.auto`` takes it.
        memory_bytes: limit of private memory; 0 is none.
    """

    configuration: Mapping[str, Any] = field(default_factory=dict)
    memory_bytes: int = 0

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


def main() -> None:
    """Answer until the input ends; see the module's docstring."""
    line, send = begin_answering()
    setting = WorkerSetting(**json.loads(line))
    limit_memory(setting.memory_bytes)
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    for request in sys.stdin:
        send(serve(json.loads(request), setting.configuration))


def serve(request: Mapping[str, Any], configuration: Mapping[str, Any]) -> Answer:
    """Check some samples of an operator, with a mixture of their own."""
    begin, used = time.monotonic(), time.process_time()
    mixture = Mixture(load_config(dict(configuration)))
    tally = {"right": 0, "stated": 0, "random": 0, "refused": 0, "wrong": 0, "compiled": 0}
    wrong: list[dict[str, str]] = []
    repaired: list[str] = []
    seen, events = 0, 0
    wanted = int(request["count"])
    samples = samples_of(request["operator"], request["dtype"])
    for sample in itertools.islice(samples, request["first"], request["first"] + wanted):
        finding = check(sample, mixture)
        seen += 1
        tally[finding.outcome] += 1
        tally["compiled"] += finding.graphs > 0
        if finding.outcome == "wrong":
            wrong.append({"sample": str(sample), "problem": finding.problem, "control": finding.control})
        trouble = [str(event) for event in mixture.report().events if event.kind not in ORDINARY]
        repaired += [f"{sample}: {text[:300]}" for text in trouble[events:]]
        events = len(trouble)
    return {
        "status": "pass",
        "tally": tally,
        "wrong": wrong,
        "repaired": repaired,
        "more": seen == wanted,
        "seconds": time.monotonic() - begin,
        "processor_s": time.process_time() - used,
    }


def operators_for(dtype: str) -> list[str]:
    """Names, with their variants, of all operators that take a type on the processor."""
    return [name for name, info in _database().items() if info.supports_dtype(getattr(torch, dtype), "cpu")]


def samples_of(name: str, dtype: str) -> Iterator[OperatorSample]:
    """Samples of one operator; its inputs want gradients where it has some."""
    info = _database()[name]
    kind = getattr(torch, dtype)
    gradients = info.supports_autograd and (kind.is_floating_point or kind.is_complex)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, sample in enumerate(info.sample_inputs("cpu", kind, requires_grad=gradients)):
            state = torch.get_rng_state()
            arguments = (sample.input, tuple(sample.args), dict(sample.kwargs))
            yield OperatorSample(name, number, info.op, arguments)
            # What the check draws does not change which samples come next.
            torch.set_rng_state(state)


@cache
def _database() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {info.full_name: info for info in operator_database()}


if __name__ == "__main__":
    main()
