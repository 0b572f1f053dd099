"""``mixbackend bench behind``: what a user's process loses to a process that compiles behind it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mixbackend.commands.output import console, print_json, quiet_stdout

if TYPE_CHECKING:
    from mixbackend.benchmarks.behind import Loss


def run(rounds: int, seconds: float, as_json: bool) -> None:
    """Measure and print one row per way of starting the other process."""
    from mixbackend.benchmarks import behind

    cores = len(os.sched_getaffinity(0))
    with quiet_stdout(), Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("behind", total=None)
        losses = behind.measure(rounds, seconds, lambda text: progress.update(task, description=text))
    if as_json:
        print_json({"cores": cores, "losses": [vars(loss) for loss in losses]})
        return
    console().print(_table(losses, cores))


def _table(losses: Sequence[Loss], cores: int) -> Table:
    table = Table(title=f"a process that compiles behind, on {cores} cores", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in (
        "busy",
        "behind",
        "call ms",
        "kept",
        "of rounds",
        "99.9% ms",
        "longest ms",
        "cores behind",
        "share",
    ):
        table.add_column(heading, justify="left" if heading in ("busy", "behind") else "right")
    for loss in losses:
        table.add_row(
            loss.busy,
            loss.way,
            f"{loss.call_ms:.2f}",
            f"{loss.kept:.1%}",
            f"{loss.kept_least:.1%} to {loss.kept_most:.1%}",
            f"{loss.late_ms:.1f}",
            f"{loss.longest_ms:.1f}",
            f"{loss.behind_cores:.2f}",
            f"{loss.share:.1%}",
        )
    return table
