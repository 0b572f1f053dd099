"""Timing one pattern: generated kernel, inductor's kernel and eager, turn by turn in one process.

Place: called by ``mixbackend bench kernels``.
Fairness: both compilers get the very same region and are called through their compiled region, without Dynamo's guards
(resizing alone goes to inductor through Dynamo, since it needs Dynamo's decompositions);
all three use one OpenMP pool; every round takes each once, in rotating order; results are compared with eager before
anything is timed. Freed memory is kept by the process, for all peers alike: otherwise the first touch of new pages
would be most of the time of large outputs, and hide the kernels.
Units: seconds, bytes per second.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.inductor import InductorBackend
from mixbackend.benchmarks.kernels.patterns import PATTERNS, Pattern
from mixbackend.contracts import Backend, Region, Unsupported
from mixbackend.graph.trace import trace_region

ROUND_SECONDS = 0.02
SIZES: Mapping[str, tuple[int, int]] = {"small": (64, 64), "medium": (512, 768), "large": (4096, 4096)}
DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Progress = Callable[[str], None]
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Options of the C library's ``mallopt``."""


@dataclass(frozen=True)
class KernelRow:
    """Figures of one pattern at one size and type.

    Attributes:
        pattern, size, dtype: what was timed.
        seconds: median per call by peer.
        spread: half the quartile distance over the median, by peer.
        moved_bytes: of all inputs and outputs, each once.
        compile_s: by peer, cold.
        error: largest difference from eager, relative to the largest magnitude.
        problem: why there are no figures, ``""`` otherwise.
    """

    pattern: str
    size: str
    dtype: str
    streaming: bool
    seconds: dict[str, float] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    moved_bytes: int = 0
    compile_s: dict[str, float] = field(default_factory=dict)
    error: float = 0.0
    problem: str = ""

    def over(self, peer: str) -> float | None:
        """How many times faster the generated kernel is."""
        return self.seconds[peer] / self.seconds["codegen"] if not self.problem and peer in self.seconds else None


def measure_all(
    sizes: Sequence[str], dtypes: Sequence[str], only: str, rounds: int, progress: Progress = lambda text: None
) -> list[KernelRow]:
    """Time every pattern with ``only`` in its name."""
    rows = []
    for pattern in PATTERNS:
        if only not in pattern.name:
            continue
        for size in sizes:
            for dtype in dtypes:
                progress(f"{pattern.name}, {size}, {dtype}")
                rows.append(measure(pattern, size, dtype, rounds))
    return rows


def measure(pattern: Pattern, size: str, dtype: str, rounds: int) -> KernelRow:
    """Time one pattern; what fails becomes a row that says so."""
    torch.manual_seed(0)
    inputs = list(pattern.inputs(*SIZES[size], DTYPES[dtype]))
    row = KernelRow(pattern.name, size, dtype, pattern.streaming)
    try:
        calls, compile_s = _peers(pattern, inputs)
        expected = _tensors(calls["eager"]())
        error = max(_distance(_tensors(call()), expected) for call in calls.values())
    except Exception as failure:  # a compiler that fails is a row of the table, not the end of the run
        return KernelRow(pattern.name, size, dtype, pattern.streaming, problem=f"{type(failure).__name__}: {failure}")
    seconds = _take_turns(calls, rounds)
    moved = sum(item.numel() * item.element_size() for item in (*inputs, *expected))
    return KernelRow(
        row.pattern,
        size,
        dtype,
        pattern.streaming,
        {name: statistics.median(values) for name, values in seconds.items()},
        {name: _spread(values) for name, values in seconds.items()},
        moved,
        compile_s,
        error,
    )


def keep_freed_memory() -> bool:
    """Let the C library reuse freed memory of any size instead of giving it back; whether that worked."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        allocator = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    never_map, never_trim = allocator(_M_MMAP_MAX, 0), allocator(_M_TRIM_THRESHOLD, -1)
    return bool(never_map and never_trim)


def copy_bandwidth(rounds: int = 15) -> float:
    """Bytes per second (read plus written) of torch's copy between two large tensors."""
    source = torch.randn(4096, 4096)
    target = torch.empty_like(source)
    target.copy_(source)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - start)
    return 2 * source.numel() * source.element_size() / statistics.median(times)


def _peers(pattern: Pattern, inputs: list[torch.Tensor]) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:
    region = trace_region(pattern.function, inputs)
    arguments = [inputs[_position(item.name)] for item in region.inputs]
    codegen, inductor = CodegenBackend(), InductorBackend()
    refusals = _refusals(codegen, region)
    if refusals:
        raise ValueError(f"the code generator refuses {refusals[0]}")
    calls: dict[str, Callable[[], Any]] = {"eager": _eager(pattern, inputs)}
    compile_s = {}
    start = time.perf_counter()
    calls["codegen"] = _bound(codegen.compile(region).run, arguments)
    compile_s["codegen"] = time.perf_counter() - start
    start = time.perf_counter()
    if _refusals(inductor, region):
        calls["inductor"] = _compiled_by_torch(pattern, inputs)
    else:
        calls["inductor"] = _bound(inductor.compile(region).run, arguments)
    calls["inductor"]()
    compile_s["inductor"] = time.perf_counter() - start
    return calls, compile_s


def _refusals(backend: Backend, region: Region) -> list[str]:
    """Ops that a backend does not take as they are."""
    judged = ((view.op, backend.judge(view)) for view in region.views)
    return [f"{op}: {verdict.detail}" for op, verdict in judged if isinstance(verdict, Unsupported)]


def _compiled_by_torch(pattern: Pattern, inputs: list[torch.Tensor]) -> Callable[[], Any]:
    """Inductor with Dynamo before it, for what only Dynamo's own decompositions turn into ops that it takes."""
    compiled = torch.compile(pattern.function, backend="inductor")

    def call() -> Any:
        with torch.no_grad():
            return compiled(*inputs)

    return call


def _position(name: str) -> int:
    """Which argument a traced input is: ``arg2_1`` is the third."""
    return int(name.removeprefix("arg").partition("_")[0])


def _eager(pattern: Pattern, inputs: list[torch.Tensor]) -> Callable[[], Any]:
    def call() -> Any:
        with torch.no_grad():
            return pattern.function(*inputs)

    return call


def _bound(run: Callable[[Sequence[Any]], Any], inputs: list[torch.Tensor]) -> Callable[[], Any]:
    return lambda: run(inputs)


def _take_turns(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    repeats = {name: _repeats(call) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(rounds):
        for name in [*names[turn % len(names) :], *names[: turn % len(names)]]:
            start = time.perf_counter()
            for _ in range(repeats[name]):
                calls[name]()
            seconds[name].append((time.perf_counter() - start) / repeats[name])
    return seconds


def _repeats(call: Callable[[], Any]) -> int:
    """Calls that fill a round."""
    call()
    start = time.perf_counter()
    call()
    return max(1, min(2000, round(ROUND_SECONDS / max(time.perf_counter() - start, 1e-7))))


def _tensors(result: Any) -> list[torch.Tensor]:
    return [item for item in (result if isinstance(result, (tuple, list)) else [result]) if item is not None]


def _distance(results: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Largest difference relative to the largest magnitude; infinite where shapes differ or numbers are missing."""
    worst = 0.0
    for result, wanted in zip(results, expected, strict=True):
        if result.shape != wanted.shape:
            return float("inf")
        scale = wanted.double().abs().max().item() if wanted.numel() else 1.0
        gap = (result.double() - wanted.double()).abs().max().item() if wanted.numel() else 0.0
        worst = max(worst, gap / max(scale, 1e-30))
    return worst


def _spread(values: Sequence[float]) -> float:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2 / statistics.median(values)
