"""``mixbackend bench first-calls``: seconds until the first result, with cold and with warm caches."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import typer
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mixbackend.commands.output import console, print_json, quiet_stdout

if TYPE_CHECKING:
    from mixbackend.benchmarks.first_calls import FirstCalls
    from mixbackend.benchmarks.one_model.accuracy import Phase


def run(models: str, phase: str, backends: str, timeout: float, as_json: bool) -> None:
    """Measure and print one row per model, then what they come to."""
    from mixbackend.benchmarks import first_calls

    if phase not in ("inference", "training"):
        raise typer.BadParameter(f"{phase!r} should be inference or training")
    chosen = _names(models) or list(first_calls.DEFAULT_MODELS)
    with quiet_stdout(), Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("first calls", total=None)
        rows = first_calls.measure(
            chosen,
            cast("Phase", phase),
            _names(backends),
            timeout,
            lambda text: progress.update(task, description=text),
        )
    if as_json:
        print_json({"summary": summary(rows), "rows": [vars(row) for row in rows]})
        return
    console().print(_table(rows))
    for name, value in summary(rows).items():
        console().print(f"{name}: {value}")
    for row in rows:
        for peer, problem in row.problems.items():
            console().print(f"{row.model}, {peer}: {problem}")


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def summary(rows: Sequence[FirstCalls]) -> dict[str, Any]:
    """Geometric means of first calls over inductor's, cold against cold and warm against warm; time beyond eager's."""
    result: dict[str, Any] = {"models": len(rows), "problems": sum(len(row.problems) for row in rows)}
    for suffix in ("", ", unverified"):
        for state in ("cold", "warm"):
            peer = f"mixture {state}{suffix}"
            shares = [_share(row, peer, f"inductor {state}") for row in rows]
            known = [share for share in shares if share is not None]
            if known:
                result[f"{peer} over inductor {state}"] = math.exp(statistics.fmean(map(math.log, known)))
                result[f"{peer} over inductor {state}, worst"] = max(known)
        beyond = [
            row.seconds[f"mixture warm{suffix}"] - row.seconds["eager"]
            for row in rows
            if {f"mixture warm{suffix}", "eager"} <= row.seconds.keys()
        ]
        if beyond:
            result[f"mixture warm{suffix}, seconds beyond eager"] = {
                "median": statistics.median(beyond),
                "worst": max(beyond),
            }
    return result


def _share(row: FirstCalls, peer: str, other: str) -> float | None:
    if peer not in row.seconds or other not in row.seconds:
        return None
    return row.seconds[peer] / row.seconds[other]


def _table(rows: Sequence[FirstCalls]) -> Table:
    peers = list(dict.fromkeys(peer for row in rows for peer in (*row.seconds, *row.problems)))
    table = Table(title="seconds of the first call", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model")
    for peer in peers:
        table.add_column(peer, justify="right")
    for row in rows:
        cells = [f"{row.seconds[peer]:.2f}" if peer in row.seconds else "-" for peer in peers]
        table.add_row(row.model, *cells)
    return table
