"""``mixbackend bench first-plans``: calls by first plans from tables against those from this machine's own rates."""

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
    from mixbackend.benchmarks.first_plans import FirstPlans


def run(models: str, phase: str, device: str, rounds: int, timeout: float, keep_own: bool, as_json: bool) -> None:
    """Measure and print one row per model, and what they come to."""
    from mixbackend.benchmarks import first_plans

    if phase not in ("inference", "training"):
        raise typer.BadParameter(f"{phase!r} should be inference or training")
    chosen = [part.strip() for part in models.split(",") if part.strip()] or first_plans.DEFAULT_MODELS
    wanted = first_plans.Wanted(phase, device, rounds, timeout, keep_own)  # type: ignore[arg-type]
    with quiet_stdout(), Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("first plans", total=None)
        rows = first_plans.measure(chosen, wanted, lambda text: progress.update(task, description=text))
    if as_json:
        print_json(value(rows))
        return
    table = Table("model", "table over own rates", "by the table", "by own rates", box=box.SIMPLE)
    for row in rows:
        told = str(row.ratio) if row.ratio is not None else f"{row.table.status}, {row.own.status}"
        table.add_row(row.model, told, _owners(row.table.placement), _owners(row.own.placement))
    console().print(table)
    console().print(f"geometric mean {value(rows)['geometric_mean']}")


def value(rows: Sequence[FirstPlans]) -> dict[str, Any]:
    """As JSON."""
    ratios = [row.ratio.median for row in rows if row.ratio is not None]
    return {
        "geometric_mean": math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None,
        "largest": max(ratios, default=None),
        "models": [
            {
                "model": row.model,
                "ratio": None if row.ratio is None else row.ratio.median,
                "table": {"status": row.table.status, "detail": row.table.detail, "placement": row.table.placement},
                "own": {"status": row.own.status, "detail": row.own.detail, "placement": row.own.placement},
            }
            for row in rows
        ],
    }


def _owners(placement: Any) -> str:
    return ", ".join(f"{name} {count}" for name, count in dict(placement).items()) if placement else ""
