"""What the kernel benchmark makes of its figures; its patterns run."""

from __future__ import annotations

import pytest
import torch
import typer

from mixbackend.benchmarks.commands import kernels as bench_kernels
from mixbackend.benchmarks.kernels.measure import KernelRow
from mixbackend.benchmarks.kernels.patterns import PATTERNS, Pattern


def row(codegen: float, inductor: float, **facts: object) -> KernelRow:
    seconds = {"codegen": codegen, "inductor": inductor, "eager": 4.0}
    return KernelRow("p", "large", "float32", True, seconds, dict.fromkeys(seconds, 0.01), 80, **facts)  # type: ignore[arg-type]


def test_kernel_summary() -> None:
    failed = KernelRow("q", "large", "float32", True, problem="no rule")
    summary = bench_kernels.summary([row(1.0, 2.0), row(2.0, 1.0), failed], bandwidth=100.0)
    assert summary["geometric_mean_over_inductor"] == pytest.approx(1.0)
    assert summary["below_0.8_of_inductor"] == 1 and summary["failed"] == 1 and summary["cases"] == 3
    assert summary["large_streaming_at_80_percent"] == 1 and summary["least_share_of_bandwidth"] == 0.4


def test_an_unknown_size_is_told() -> None:
    with pytest.raises(typer.BadParameter, match="huge"):
        bench_kernels.run("huge", "float32", "", 1, as_json=True)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_patterns_run(pattern: Pattern, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    result = pattern.function(*pattern.inputs(64, 64, dtype))
    tensors = [item for item in (result if isinstance(result, tuple) else (result,)) if item is not None]
    assert tensors and all(item.isfinite().all() for item in tensors if item.is_floating_point())
