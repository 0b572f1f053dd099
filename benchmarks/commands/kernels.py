"""``mixbackend bench kernels``: generated kernels against inductor's and eager, on fused patterns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mixbackend.commands.output import console, print_json, quiet_stdout

if TYPE_CHECKING:
    from mixbackend.benchmarks.kernels.measure import KernelRow


def run(sizes: str, dtypes: str, only: str, rounds: int, as_json: bool) -> None:
    """Time the patterns and print one row each, then what they come to."""
    from mixbackend.benchmarks.kernels import measure

    chosen_sizes = _chosen(sizes, list(measure.SIZES), "size")
    chosen_dtypes = _chosen(dtypes, list(measure.DTYPES), "dtype")
    with quiet_stdout(), Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("kernels", total=None)
        measure.keep_freed_memory()
        bandwidth = measure.copy_bandwidth()
        rows = measure.measure_all(
            chosen_sizes, chosen_dtypes, only, rounds, lambda text: progress.update(task, description=text)
        )
    if as_json:
        print_json({"summary": summary(rows, bandwidth), "rows": [_plain(row, bandwidth) for row in rows]})
        return
    console().print(_table(rows, bandwidth))
    for name, value in summary(rows, bandwidth).items():
        console().print(f"{name}: {value}")


def _chosen(text: str, known: Sequence[str], what: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [part for part in parts if part not in known]
    if unknown or not parts:
        raise typer.BadParameter(f"no {what} is called {', '.join(unknown) or 'nothing'}; there are {', '.join(known)}")
    return parts


def summary(rows: Sequence[KernelRow], bandwidth: float) -> dict[str, Any]:
    """Geometric means, the slowest cases, and how many large streaming kernels reach their share of the bandwidth."""
    timed = [row for row in rows if not row.problem]
    result: dict[str, Any] = {
        "patterns": len({row.pattern for row in rows}),
        "cases": len(rows),
        "failed": len(rows) - len(timed),
        "copy_bytes_per_s": bandwidth,
    }
    for peer in ("inductor", "eager"):
        ratios = [ratio for row in timed if (ratio := row.over(peer)) is not None]
        if ratios:
            result[f"geometric_mean_over_{peer}"] = math.exp(statistics.fmean(map(math.log, ratios)))
            result[f"least_over_{peer}"] = min(ratios)
            result[f"below_0.8_of_{peer}"] = sum(ratio < 0.8 for ratio in ratios)
    large = [row for row in timed if row.size == "large" and row.streaming]
    if large:
        shares = [row.moved_bytes / row.seconds["codegen"] / bandwidth for row in large]
        result["large_streaming_cases"] = len(large)
        result["large_streaming_at_80_percent"] = sum(share >= 0.8 for share in shares)
        result["least_share_of_bandwidth"] = min(shares)
    return result


def _plain(row: KernelRow, bandwidth: float) -> dict[str, Any]:
    if row.problem:
        return {"pattern": row.pattern, "size": row.size, "dtype": row.dtype, "problem": row.problem}
    return {
        "pattern": row.pattern,
        "size": row.size,
        "dtype": row.dtype,
        "streaming": row.streaming,
        "seconds": row.seconds,
        "spread": row.spread,
        "compile_s": row.compile_s,
        "bytes": row.moved_bytes,
        "share_of_bandwidth": row.moved_bytes / row.seconds["codegen"] / bandwidth,
        "over_inductor": row.over("inductor"),
        "over_eager": row.over("eager"),
        "error": row.error if math.isfinite(row.error) else None,
    }


def _table(rows: Sequence[KernelRow], bandwidth: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("pattern", "size", "dtype"):
        table.add_column(heading)
    for heading in ("codegen us", "inductor us", "eager us", "over inductor", "over eager", "of bandwidth", "error"):
        table.add_column(heading, justify="right")
    for row in rows:
        if row.problem:
            table.add_row(row.pattern, row.size, row.dtype, row.problem[:60])
            continue
        micros = [f"{row.seconds[name] * 1e6:.1f}" for name in ("codegen", "inductor", "eager")]
        ratios = [f"{row.over(name):.2f}" for name in ("inductor", "eager")]
        share = row.moved_bytes / row.seconds["codegen"] / bandwidth
        table.add_row(row.pattern, row.size, row.dtype, *micros, *ratios, f"{share:.2f}", f"{row.error:.1e}")
    return table
