"""``mixbackend bench partitioner``: seconds of a placement as graphs grow."""

from __future__ import annotations

from typing import Any

import typer
from rich import box
from rich.table import Table

from mixbackend.commands.output import console, print_json, quiet_stdout


def run(nodes: str, seed: int, as_json: bool) -> None:
    """Time placements of graphs with about these numbers of nodes, given as ``1000,10000``."""
    sizes = parse_sizes(nodes)
    from mixbackend.benchmarks import partitioner  # after the sizes: a wrong one is told at once

    with quiet_stdout():
        rows = partitioner.run(sizes, seed)
    if as_json:
        print_json(rows)
        return
    console().print(_table(rows))


def parse_sizes(text: str) -> list[int]:
    """``1000,10000`` as numbers.

    Raises:
        typer.BadParameter: something in it is no positive whole number.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r} should be positive whole numbers with commas between, as 1000,10000")
    return [int(part) for part in parts]


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("nodes", "backends", "regions", "seconds", "microseconds per node"):
        table.add_column(heading, justify="right")
    table.add_column("optimal")
    table.add_column("seconds per stage", overflow="fold")
    for row in rows:
        stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in row["stages"].items())
        each = row["seconds"] / row["nodes"] * 1e6
        numbers = (row["nodes"], row["backends"], row["regions"], f"{row['seconds']:.2f}", f"{each:.0f}")
        table.add_row(*map(str, numbers), "yes" if row["optimal"] else "no", stages)
    return table
