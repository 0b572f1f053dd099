"""``mixbackend bench first-calls``: seconds of processes that make one first call, and what they went into."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mixbackend.commands.output import console, print_json, quiet_stdout

if TYPE_CHECKING:
    from mixbackend.benchmarks.first_calls.measure import FirstCalls
    from mixbackend.benchmarks.one_model.accuracy import Phase


def run(
    models: str, phase: str, backends: str, rounds: int, flame_graphs: Path | None, timeout: float, as_json: bool
) -> None:
    """Measure and print two tables: processes by peer, and phases of our own."""
    from mixbackend.benchmarks.first_calls.measure import DEFAULT_MODELS, Options, measure

    if phase not in ("inference", "training"):
        raise typer.BadParameter(f"{phase!r} should be inference or training")
    options = Options(rounds, tuple(_names(backends)), timeout, flame_graphs)
    with quiet_stdout(), Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("first calls", total=None)
        rows = measure(
            _models(models, phase) or DEFAULT_MODELS,
            cast("Phase", phase),
            options,
            lambda text: progress.update(task, description=text),
        )
    if as_json:
        print_json({"summary": summary(rows), "rows": [vars(row) for row in rows]})
        return
    console().print(_processes(rows))
    console().print(_phases(rows))
    for name, value in summary(rows).items():
        console().print(f"{name}: {value}")
    for row in rows:
        for peer, problem in row.problems.items():
            console().print(f"{row.model}, {peer}: {problem}")


def _models(text: str, phase: str) -> list[str]:
    """Names as they were given; ``true-size`` is all of these that are timed in this phase."""
    from mixbackend.benchmarks.first_calls.worker import TRUE_SIZE
    from mixbackend.benchmarks.peers import models as peers

    names = _names(text)
    if names != [TRUE_SIZE.rstrip(":")]:
        return names
    return [TRUE_SIZE + name for name in (peers.TRAINED if phase == "training" else peers.MODELS)]


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def summary(rows: Sequence[FirstCalls]) -> dict[str, Any]:
    """Our processes: the share of inductor's seconds (geometric mean, worst), and seconds beyond the baseline's."""
    from mixbackend.benchmarks.first_calls.measure import BASELINE, MIXTURE, STATES

    result: dict[str, Any] = {"models": len(rows), "problems": sum(len(row.problems) for row in rows)}
    for state in STATES:
        shares = [share for row in rows if (share := _share(row, MIXTURE, "inductor", state)) is not None]
        if shares:
            result[f"{state} over inductor's"] = math.exp(statistics.fmean(map(math.log, shares)))
            result[f"{state} over inductor's, worst"] = max(shares)
        beyond = [seconds for row in rows if (seconds := row.beyond(MIXTURE, state)) is not None]
        if beyond:
            result[f"{state}, seconds beyond {BASELINE}"] = {"median": statistics.median(beyond), "worst": max(beyond)}
    return result


def _share(row: FirstCalls, peer: str, other: str, state: str) -> float | None:
    mine, theirs = row.seconds.get(f"{peer} {state}"), row.seconds.get(f"{other} {state}")
    return None if mine is None or theirs is None else mine["process_s"] / theirs["process_s"]


def _processes(rows: Sequence[FirstCalls]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row.seconds))
    table = Table(title="seconds of a process with one first call", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model")
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        cells = [f"{row.seconds[name]['process_s']:.2f}" if name in row.seconds else "-" for name in names]
        table.add_row(row.model, *cells)
    return table


def _phases(rows: Sequence[FirstCalls]) -> Table:
    from mixbackend.benchmarks.first_calls.phases import PHASES

    table = Table(title="seconds by phase of the mixture's process, sampled", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model")
    for phase in PHASES:
        table.add_column(phase, justify="right")
    for row in rows:
        for state, seconds in row.phases.items():
            table.add_row(f"{row.model} {state}", *(f"{seconds[phase]:.2f}" for phase in PHASES))
    return table
