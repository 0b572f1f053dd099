"""``mixbackend bench threads``: regions of several pools of threads in turns, over the same regions alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mixbackend.commands.output import console, print_json, quiet_stdout

if TYPE_CHECKING:
    from mixbackend.benchmarks.threads import Outcome


def run(rounds: int, calls: int, as_json: bool) -> None:
    """Measure and print."""
    from mixbackend.benchmarks import threads

    before = _load()
    with quiet_stdout(), Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("threads", total=None)
        outcomes, problems = threads.measure(
            rounds, calls, progress=lambda text: progress.update(task, description=text)
        )
    show(outcomes, problems, {"before": before, "after": _load()}, as_json)


def show(outcomes: Sequence[Outcome], problems: Mapping[str, str], load: Mapping[str, Any], as_json: bool) -> None:
    """Print one row per setting, then each part.

    Args:
        outcomes, problems: what ``threads.measure`` returned.
        load: of the machine, before and after.
        as_json: for programs.
    """
    from mixbackend.benchmarks import threads

    if as_json:
        rows = [{**vars(outcome), "bar": threads.BARS.get(outcome.setting)} for outcome in outcomes]
        print_json({"load": load, "problems": problems, "settings": rows})
        return
    console().print(_settings(outcomes, threads.BARS))
    console().print(_parts(outcomes))
    console().print(f"programs that wanted to run at once: {load['before']} before, {load['after']} after")
    for outcome in outcomes:
        console().print(f"{outcome.setting}: {outcome.policy}")
    for name, problem in problems.items():
        console().print(f"left out {name}: {problem}")


def _load() -> Any:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _settings(outcomes: Sequence[Outcome], bars: Any) -> Table:
    table = Table(title="time in turns over time alone", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("setting", "ratio", "+-", "over its own", "bar"):
        table.add_column(heading, justify="left" if heading == "setting" else "right")
    for outcome in outcomes:
        bar = bars.get(outcome.setting)
        figures = (outcome.ratio, outcome.ratio_spread, outcome.own_ratio)
        table.add_row(outcome.setting, *(f"{figure:.2f}" for figure in figures), f"{bar:.2f}" if bar else "-")
    return table


def _parts(outcomes: Sequence[Outcome]) -> Table:
    table = Table(title="microseconds of each part, alone -> in turns", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("part")
    for outcome in outcomes:
        table.add_column(outcome.setting, justify="right")
    for name in outcomes[0].alone_s:
        cells = [f"{outcome.alone_s[name] * 1e6:.0f} -> {outcome.turns_s[name] * 1e6:.0f}" for outcome in outcomes]
        table.add_row(name, *cells)
    return table
