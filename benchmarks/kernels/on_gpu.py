"""Generated kernels on a GPU: which share of a copy's bandwidth memory-bound patterns reach, beside inductor's kernels.

Place: ``python -m mixbackend.benchmarks.kernels.on_gpu [NAME...] [--no-inductor]``; needs a GPU.
Output: one JSON line for the GPU (copy bandwidth, microseconds of a small launch), then one per pattern and type: bytes
that have to be moved, milliseconds of both (medians of event-timed batches, taken in turns), and shares of the copy.
Inputs are larger than any cache. A pattern that fails says so in its line, and the others go on.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.runtime.trace import trace_region

ROWS, COLUMNS = 16384, 4096
Tensors = Sequence[torch.Tensor]
BATCHES, CALLS = 7, 10


@dataclass(frozen=True)
class Pattern:
    """One pattern.

    Attributes:
        function: in plain torch.
        inputs: for a type, on the GPU.
        extra: bytes that are moved beside each input and output once (a gather reads as much as it writes), or less.
    """

    function: Callable[..., Any]
    inputs: Callable[[torch.dtype], Tensors]
    extra: Callable[[Tensors, Tensors], int] = lambda inputs, outputs: 0


def _random(*shapes: tuple[int, ...]) -> Callable[[torch.dtype], Tensors]:
    return lambda dtype: [torch.randn(shape, device="cuda").to(dtype) for shape in shapes]


def _rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def _rotary(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


def _with_classes(rows: int, classes: int) -> Callable[[torch.dtype], Tensors]:
    return lambda dtype: [
        torch.randn(rows, classes, device="cuda").to(dtype),
        torch.randint(0, classes, (rows,), device="cuda"),
    ]


def _table(dtype: torch.dtype) -> Tensors:
    return [torch.randn(50257, 1024, device="cuda").to(dtype), torch.randint(0, 50257, (16, 4096), device="cuda")]


def _masked(dtype: torch.dtype) -> Tensors:
    return [torch.randn(16, 16, 512, 1024, device="cuda").to(dtype), torch.rand(512, 1024, device="cuda") > 0.9]


def _layer_norm_backward(
    g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> Any:
    gw = g.float() * w
    normed = (x.float() - mean) * rstd
    inner = (gw * normed).mean(-1, keepdim=True)
    return (rstd * (gw - gw.mean(-1, keepdim=True) - normed * inner)).to(x.dtype)


def _batch_norm_relu(x: torch.Tensor, m: torch.Tensor, v: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    return F.relu(torch.ops.aten._native_batch_norm_legit_no_training(x, w, b, m, v.square(), 0.1, 1e-5)[0])


_PLANE = (ROWS, COLUMNS)
PATTERNS: dict[str, Pattern] = {
    "gelu_bias_residual": Pattern(lambda x, b, r: F.gelu(x + b) + r, _random(_PLANE, (COLUMNS,), _PLANE)),
    "silu_mul": Pattern(lambda x, y: F.silu(x) * y, _random(_PLANE, _PLANE)),
    "add_three": Pattern(lambda x, y, z: x + y * 2 + z, _random(_PLANE, _PLANE, _PLANE)),
    "layer_norm": Pattern(lambda x, w, b: F.layer_norm(x, (COLUMNS,), w, b), _random(_PLANE, (COLUMNS,), (COLUMNS,))),
    "layer_norm_768": Pattern(lambda x, w, b: F.layer_norm(x, (768,), w, b), _random((65536, 768), (768,), (768,))),
    "layer_norm_input_gradient": Pattern(
        _layer_norm_backward, _random(_PLANE, _PLANE, (COLUMNS,), (ROWS, 1), (ROWS, 1))
    ),
    "rms_norm": Pattern(_rms_norm, _random(_PLANE, (COLUMNS,))),
    "softmax": Pattern(lambda x: torch.softmax(x, -1), _random(_PLANE)),
    "softmax_128": Pattern(lambda x: torch.softmax(x, -1), _random((524288, 128))),
    "log_softmax": Pattern(lambda x: torch.log_softmax(x, -1), _random(_PLANE)),
    "masked_softmax": Pattern(lambda x, m: torch.softmax(x.masked_fill(m, float("-inf")), -1), _masked),
    "cross_entropy": Pattern(lambda x, t: F.cross_entropy(x.float(), t), _with_classes(4096, 32000)),
    "rotary": Pattern(_rotary, _random((8, 32, 2048, 128), (2048, 128), (2048, 128))),
    "row_sum": Pattern(lambda x: x.sum(-1), _random(_PLANE)),
    "column_sum": Pattern(lambda x: x.sum(0), _random(_PLANE)),
    "sum_of_all": Pattern(lambda x: x.sum(), _random(_PLANE)),
    "transposed_copy": Pattern(lambda x: x.t().contiguous(), _random(_PLANE)),
    "heads_to_rows": Pattern(lambda x: x.transpose(1, 2).reshape(16, 1024, 4096) * 2, _random((16, 32, 1024, 128))),
    "concatenation": Pattern(lambda x, y: torch.cat([x, y], 1) + 1, _random((ROWS, 2048), (ROWS, 1024))),
    "embedding": Pattern(
        lambda w, i: F.embedding(i, w), _table, lambda inputs, outputs: outputs[0].nbytes - inputs[0].nbytes
    ),
    "batch_norm_relu": Pattern(_batch_norm_relu, _random((64, 256, 56, 56), *[(256,)] * 4)),
    "max_pool": Pattern(lambda x: F.max_pool2d(x, 3, 2, 1), _random((64, 64, 112, 112))),
}


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


def _measure(pattern: Pattern, dtype: torch.dtype, copy: float, inductor: bool) -> dict[str, Any]:
    inputs = list(pattern.inputs(dtype))
    mine, facts = _generated(pattern, inputs)
    wanted = pattern.function(*inputs)
    moved = sum(value.nbytes for value in inputs) + wanted.nbytes + pattern.extra(inputs, [wanted])
    error = (mine()[0].double() - wanted.double()).abs().max().item()
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


def _generated(pattern: Pattern, inputs: list[torch.Tensor]) -> tuple[Callable[[], Any], dict[str, Any]]:
    backend = CodegenBackend()
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
