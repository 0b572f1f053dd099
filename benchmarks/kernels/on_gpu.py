"""Generated kernels on a GPU: which share of a copy's bandwidth memory-bound patterns reach, beside inductor's kernels.

Place: ``python -m mixbackend.benchmarks.kernels.on_gpu [NAME...] [--no-inductor]``; needs a GPU.
Output: one JSON line for the GPU (copy bandwidth, microseconds of a small launch), then one per pattern and type: bytes
that have to be moved, milliseconds of both (medians of event-timed batches, taken in turns), and shares of the copy.
Inputs are larger than any cache. Products of matrices come last: our kernel with the model's tile and with the measured
one, eager's (cuBLAS, and what follows as kernels of its own) and inductor's, with TFLOP/s of each.
Patterns that draw random numbers start all from one seed. What fails says so in its line, and the others go on.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.codegen.targets.triton.target import TritonTarget
from mixbackend.benchmarks.kernels.gpu_patterns import PATTERNS, PRODUCTS, Pattern, Product
from mixbackend.graph.trace import trace_region

BATCHES, CALLS = 7, 10


def main(arguments: Sequence[str]) -> None:
    """Measure, and print."""
    names = [item for item in arguments if not item.startswith("--")]
    copy = _copy_bytes_per_s()
    print(json.dumps({"device": torch.cuda.get_device_name(), "copy_tb_per_s": copy / 1e12, **_launches()}), flush=True)
    for name, pattern in PATTERNS.items():
        for dtype in (torch.float32, torch.bfloat16) if not names or name in names else ():
            line = {"pattern": name, "dtype": str(dtype).removeprefix("torch.")}
            try:
                line.update(_measure(pattern, dtype, copy, "--no-inductor" not in arguments))
            except Exception as error:  # reported as the pattern's result
                line["error"] = f"{type(error).__name__}: {error}"[:2000]
            print(json.dumps(line), flush=True)
            torch.compiler.reset()
    for name, product in PRODUCTS.items():
        for dtype in product.dtypes if not names or name in names else ():
            line = {"product": name, "dtype": str(dtype).removeprefix("torch.")}
            try:
                line.update(_measure_product(product, dtype, "--no-inductor" not in arguments))
            except Exception as error:  # reported as the product's result
                line["error"] = f"{type(error).__name__}: {error}"[:2000]
            print(json.dumps(line), flush=True)
            torch.compiler.reset()


def _measure_product(product: Product, dtype: torch.dtype, inductor: bool) -> dict[str, Any]:
    """Float32 as torch's flags say: without TF32 unless the process allowed it."""
    inputs = product.inputs(dtype)
    pattern = Pattern(product.function, lambda _: inputs)
    mine, facts = _generated(pattern, inputs)
    tuned, tuned_facts = _generated(pattern, inputs, measuring=True)
    wanted = product.function(*inputs)
    peers = {"codegen": mine, "codegen_measured": tuned, "eager": lambda: product.function(*inputs)}
    if inductor:
        compiled = torch.compile(product.function, fullgraph=True)
        compiled(*inputs)
        peers["inductor"] = lambda: compiled(*inputs)
    error = max((peer()[0].double() - wanted.double()).abs().max().item() for peer in (mine, tuned))
    seconds = _in_turns(peers)
    times = {f"{name}_ms": round(1e3 * value, 4) for name, value in seconds.items()}
    rates = {f"{name}_tflops": round(product.flops / value / 1e12, 1) for name, value in seconds.items()}
    moved = sum(value.nbytes for value in (*inputs, wanted))
    counts = {"gflop": round(product.flops / 1e9, 2), "mbytes": round(moved / 1e6, 1)}
    facts["measured_compile_s"] = tuned_facts["compile_s"]
    return {**counts, **times, **rates, "largest_difference": error, **facts}


def _measure(pattern: Pattern, dtype: torch.dtype, copy: float, inductor: bool) -> dict[str, Any]:
    inputs = list(pattern.inputs(dtype))
    mine, facts = _generated(pattern, inputs)
    wanted = _from_one_seed(lambda: pattern.function(*inputs))
    moved = sum(value.nbytes for value in (*inputs, *wanted)) + pattern.extra(inputs, wanted)
    made = list(zip(_from_one_seed(mine), wanted, strict=True))
    if any(value.dtype != theirs.dtype or value.shape != theirs.shape for value, theirs in made):
        raise ValueError("a pattern returns its results in another order than it computes them")
    error = max((value.double() - theirs.double()).abs().max().item() for value, theirs in made)
    peers = {"codegen": mine}
    if inductor:
        compiled = torch.compile(pattern.function, fullgraph=True)
        started = time.perf_counter()
        compiled(*inputs)
        torch.cuda.synchronize()
        facts["inductor_compile_s"] = round(time.perf_counter() - started, 2)
        peers["inductor"] = lambda: compiled(*inputs)
    seconds = _in_turns(peers)
    shares = {f"{name}_share": round(moved / value / copy, 3) for name, value in seconds.items()}
    times = {f"{name}_ms": round(1e3 * value, 4) for name, value in seconds.items()}
    return {"mbytes": round(moved / 1e6, 1), **times, **shares, "largest_difference": error, **facts}


def _from_one_seed(function: Callable[[], Any]) -> list[torch.Tensor]:
    """What a function returns, as a list; what is random starts where all start."""
    torch.cuda.manual_seed(0)
    results = function()
    return [results] if isinstance(results, torch.Tensor) else list(results)


def _generated(
    pattern: Pattern, inputs: list[torch.Tensor], measuring: bool = False
) -> tuple[Callable[[], Any], dict[str, Any]]:
    # A target that is told its hardware keeps the model's plans, whatever was measured before.
    backend = CodegenBackend(measuring=True) if measuring else CodegenBackend(TritonTarget(TritonTarget().hardware))
    started = time.perf_counter()
    region = trace_region(pattern.function, inputs)
    arguments = [inputs[place] for place in _places(item.name for item in region.inputs)]
    compiled = backend.compile(region)
    compiled.run(arguments)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    facts = {"kernels": len(backend.program(region).calls), "compile_s": round(seconds, 2)}
    return lambda: compiled.run(arguments), facts


def _places(names: Iterator[str]) -> list[int]:
    found = [re.fullmatch(r"arg(\d+)_\d+", name) for name in names]
    return [int(match[1]) for match in found if match is not None]


def _in_turns(peers: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median seconds of a call of each, batch by batch in turns."""
    times: dict[str, list[float]] = {name: [] for name in peers}
    for peer in peers.values():
        for _ in range(3):
            peer()
    for _ in range(BATCHES):
        for name, peer in peers.items():
            times[name].append(_batch(peer, CALLS))
    return {name: statistics.median(values) for name, values in times.items()}


def _batch(function: Callable[[], Any], calls: int) -> float:
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    first.record()
    for _ in range(calls):
        function()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / calls / 1e3


def _copy_bytes_per_s() -> float:
    source = torch.randn(1 << 27, device="cuda")
    target = torch.empty_like(source)
    seconds = _in_turns({"copy": lambda: target.copy_(source)})["copy"]
    return 2 * source.nbytes / seconds


def _launches() -> dict[str, float]:
    """Microseconds of a call from Python, where the GPU has next to nothing to do."""
    x = torch.randn(64, 64, device="cuda")
    pattern = Pattern(lambda x: F.gelu(x) + x, lambda dtype: [x])
    mine, _ = _generated(pattern, [x])
    compiled = torch.compile(pattern.function)
    peers: dict[str, Callable[[], Any]] = {"codegen": mine, "inductor": lambda: compiled(x), "eager_add": lambda: x + x}
    found = {}
    for name, peer in peers.items():
        peer()
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(1000):
            peer()
        found[f"{name}_call_us"] = round(1e3 * (time.perf_counter() - started), 2)
        torch.cuda.synchronize()
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
