"""``mixbackend bench first-plans``: calls by first plans from tables against those from this machine's own rates."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer
from rich import box
from rich.table import Table

from mixbackend.benchmarks.commands.progress import names_in
from mixbackend.commands.output import console, print_json, quiet_stdout

if TYPE_CHECKING:
    from mixbackend.benchmarks.first_plans import Case, FirstPlans, Wanted


def run(models: str, phase: str, own: Path | None, backends: str, as_json: bool, **wanted: Any) -> None:
    """Measure and print one row per model, and what they come to.

    Args:
        models: names with commas between; empty for the usual ones.
        phase: inference, training or both.
        own: exported rates of this machine.
        backends: that plans may use, with commas between.
        as_json: print one JSON value.
        wanted: the other fields of ``first_plans.Wanted``.
    """
    from mixbackend.benchmarks import first_plans
    from mixbackend.benchmarks.machine_rates import check_rates, exported_here
    from mixbackend.benchmarks.one_model.precision import PRECISIONS

    if phase not in ("inference", "training", "both"):
        raise typer.BadParameter(f"{phase!r} should be inference, training or both")
    if wanted["precision"] not in PRECISIONS["inference"]:
        raise typer.BadParameter(f"{wanted['precision']!r} is none of {', '.join(PRECISIONS['inference'])}")
    machine = None if own is None else exported_here(own, wanted["device"])
    given = first_plans.Wanted(own=machine, backends=names_in(backends), **wanted)
    missing = [name for name in check_rates(given.device, machine) if not backends or name in given.backends]
    with quiet_stdout():
        rows = first_plans.measure(_cases(models, phase), given, _tell)
    found = {**value(rows), "own_rates_lack": missing, "table": table_machines(given)}
    if as_json:
        print_json(found)
        return
    table = Table("model", "phase", "table over own rates", "by the table", "by own rates", box=box.SIMPLE)
    for row in rows:
        table.add_row(*row.case, _ratio(row), *(_owners(item) for item in (row.table, row.own)))
    to = console()
    to.print(table)
    to.print(f"the table: {', '.join(found['table']) or 'none, priors'}")
    to.print(f"own rates lack: {', '.join(missing) or 'nothing'}")
    to.print(
        f"geometric mean {found['geometric_mean']}, largest {found['largest']}, {found['measured']} of {len(rows)}"
    )


def _cases(models: str, phase: str) -> list[Case]:
    from mixbackend.benchmarks.first_plans import default_cases
    from mixbackend.benchmarks.one_model.accuracy import Phase

    names = names_in(models)
    phases: tuple[Phase, ...] = tuple(item for item in get_args(Phase) if phase in (item, "both"))
    if names:
        return [(name, item) for name in names for item in phases]
    return [case for case in default_cases() if case[1] in phases]


def _tell(row: FirstPlans) -> None:
    """A line as soon as it is known: what is asked to end early has told what it found."""
    print(f"{' '.join(row.case)}: {_ratio(row)}", file=sys.stderr, flush=True)


def table_machines(wanted: Wanted) -> list[str]:
    """What the first plans went by."""
    from mixbackend.benchmarks.withheld import other_machines

    return [f"{item.device.device} ({item.mark})" for item in other_machines(wanted.device, wanted.keep_own)]


def value(rows: Sequence[FirstPlans]) -> dict[str, Any]:
    """As JSON."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    return {
        "geometric_mean": math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None,
        "largest": max(ratios, default=None),
        "measured": len(ratios),
        "not_reached": [" ".join(row.case) for row in rows if row.status == "not reached"],
        "models": [
            {
                "model": row.case[0],
                "phase": row.case[1],
                "status": row.status,
                "ratio": row.ratio,
                "table": None if row.table is None else row.table.to_dict(),
                "own": None if row.own is None else row.own.to_dict(),
            }
            for row in rows
        ],
    }


def _ratio(row: FirstPlans) -> str:
    if row.ratio is None or row.table is None or row.own is None or not row.table.rounds_s:
        return row.status
    times = " over ".join(f"{1e3 * item.median_s:.3f} ms +-{item.spread:.1%}" for item in (row.table, row.own))
    return f"{row.ratio:.3f}, {times}"


def _owners(timing: Any) -> str:
    return "" if timing is None else ", ".join(f"{name} {count}" for name, count in timing.placement.items())
