"""A process that runs regions on several pools of threads, one after another: worker of ``benchmarks.threads``.

Place: started by ``benchmarks.threads`` with the names of its parts as arguments; torch is imported first, as users do.
Protocol: one JSON value per line. Out: ``{"parts": {name: pool}, "problems": {name: reason}, "policy": text}`` when
ready. In: ``{"calls": n, "policy": bool}``; out: ``{"seconds": {name: [n numbers]}}``, the parts in turns n times.
Parts: a matrix product on oneDNN and on torch, the same with bias and gelu on ONNX Runtime and OpenVINO, a layer
normalisation with gelu on the code generator: about the regions of one transformer layer, half a millisecond each.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mixbackend import registry
from mixbackend.benchmarks.threads import PARTS
from mixbackend.contracts import Backend
from mixbackend.contracts.threads import TORCH_POOL
from mixbackend.graph.regions import whole_region
from mixbackend.graph.trace import trace_graph
from mixbackend.host.threads import ThreadSharing

_TOKENS, _WIDTH = 128, 768
_WARM_UP_CALLS = 3

Call = Callable[[], object]


def main(names: Sequence[str]) -> None:
    """Build the parts, say so, and answer questions until standard input ends."""
    answers = sys.stdout
    sys.stdout = sys.stderr
    torch.manual_seed(0)
    calls: dict[str, Call] = {}
    pools: dict[str, str] = {}
    problems: dict[str, str] = {}
    for name in names:
        try:
            calls[name], pools[name] = _part(name)
        except Exception as error:  # a library that is not installed, or fails here, is left out and named
            problems[name] = f"{type(error).__name__}: {error}"
    _write(answers, {"parts": pools, "problems": problems})
    policy = _Policy(pools.values())
    for line in sys.stdin:
        question = json.loads(line)
        said = policy.set(bool(question["policy"]))
        _write(answers, {"seconds": _take_turns(calls, int(question["calls"])), "policy": said})


class _Policy:
    """The thread policy as a compile cache applies it, on and off."""

    def __init__(self, pools: Any) -> None:
        self._pools = frozenset(pools)
        self._sharing = ThreadSharing()
        self._owner: _Owner | None = None

    def set(self, wanted: bool) -> str:
        if not wanted:
            self._owner = None
            return "off"
        self._owner = self._owner or _Owner()
        return str(self._sharing.use(self._owner, self._pools))


class _Owner:
    """Stands for a compile cache."""


def _take_turns(calls: Mapping[str, Call], count: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-_WARM_UP_CALLS, count):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            elapsed = time.perf_counter() - begin
            if turn >= 0:
                seconds[name].append(elapsed)
    return seconds


def _part(name: str) -> tuple[Call, str]:
    """What one part calls, and the pool that it runs on."""
    rows, weight = torch.randn(_TOKENS, _WIDTH), torch.randn(_WIDTH, _WIDTH) * 0.02
    bias = torch.randn(_WIDTH)
    if name == "torch":
        return lambda: torch.mm(rows, weight), TORCH_POOL
    if name == "onednn":
        linear = torch.ops.mkldnn._linear_pointwise
        return lambda: linear(rows, weight, bias, "none", [], ""), TORCH_POOL
    backend = _backend(name)
    if name == "codegen":
        many = torch.randn(4 * _TOKENS, _WIDTH)
        return _region(backend, _normalize, [many, bias]), backend.traits().thread_pool
    return _region(backend, _linear_gelu, [rows, weight, bias]), backend.traits().thread_pool


def _normalize(rows: Any, scale: Any) -> Any:
    return torch.nn.functional.gelu(torch.nn.functional.layer_norm(rows, (_WIDTH,), scale))


def _linear_gelu(rows: Any, weight: Any, bias: Any) -> Any:
    return torch.nn.functional.gelu(torch.addmm(bias, rows, weight))


def _backend(name: str) -> Backend:
    return next(backend for backend in registry.resolve((name, "eager"), frozenset()) if backend.name == name)


def _region(backend: Backend, function: Callable[..., Any], inputs: list[torch.Tensor]) -> Call:
    graph_module, graph = trace_graph(function, inputs)
    region = whole_region(graph_module, graph)
    by_name = dict(zip((item.name for item in graph.inputs), inputs, strict=True))
    ordered = [by_name[item.name] for item in region.inputs]
    compiled = backend.compile(region)
    return lambda: compiled.run(ordered)


def _write(stream: Any, value: Any) -> None:
    stream.write(json.dumps(value) + "\n")
    stream.flush()


if __name__ == "__main__":
    unknown = set(sys.argv[1:]) - set(PARTS)
    if unknown:
        raise SystemExit(f"unknown parts: {', '.join(sorted(unknown))}")
    main(sys.argv[1:])
