"""``mixbackend calibrate``: measure rates of this machine, for images and fleets, and write them as a table.

Output: rows in the database of the cache folder; with ``--export`` this machine in the file of its family.
Nothing else measures rates. What is known is not measured again (``mixbackend cache clear --measurements`` forgets it).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mixbackend.backends.common.whole_file import replacing
from mixbackend.calibrate.exporting import machine_as_measured
from mixbackend.calibrate.on_purpose import calibrate
from mixbackend.commands.output import console, print_json, quiet_stdout
from mixbackend.contracts import Backend
from mixbackend.cost.families import family_of
from mixbackend.cost.model import device_model, rates_row
from mixbackend.cost.rate_tables import with_machine
from mixbackend.cost.records import read_unfinished
from mixbackend.storage import Database


@dataclass(frozen=True)
class Wanted:
    """What is measured.

    Attributes:
        device: ``cpu`` or ``cuda``.
        budget_s: seconds for all backends, ``None`` for the usual.
        config: configuration file, for its backends and its cache folder.
        force: measure although the machine is not quiet.
        export: file to write this machine's rows to.
    """

    device: str = "cpu"
    budget_s: float | None = None
    config: str | None = None
    force: bool = False
    export: Path | None = None


def run(wanted: Wanted, as_json: bool) -> int:
    """Measure, and write what was asked for."""
    notes: list[tuple[str, str]] = []
    begin = time.monotonic()
    with quiet_stdout(), _showing() as show:
        done = calibrate(
            wanted.device,
            budget_s=wanted.budget_s,
            config=wanted.config,
            force=wanted.force,
            report=lambda backend, note: notes.append((backend, note)),
            begin=show,
        )
        seconds = time.monotonic() - begin
        written = _export(wanted, done.backends, done.database)
    value = {
        "device": wanted.device,
        "seconds": seconds,
        "busy": done.busy,
        "backends": [_record_of(item, wanted.device, done.database, notes) for item in done.backends],
        "exported": written,
    }
    if as_json:
        print_json(value)
    else:
        _show(value)
    return 0


def _export(wanted: Wanted, backends: Sequence[Backend], database: Database) -> str | None:
    if wanted.export is None:
        return None
    machine = machine_as_measured(backends, wanted.device, database)
    text = with_machine(wanted.export, family_of(machine.device.device), machine)
    with replacing(wanted.export) as stream:
        stream.write(text.encode())
    return str(wanted.export)


def _record_of(
    backend: Backend, device_type: str, database: Database, notes: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    row = rates_row(backend, device_model(device_type, database), database)
    unfinished = read_unfinished(row)
    return {
        "name": backend.name,
        "measured": row is not None,
        "settled": row is not None and row.get("settled") is not False,
        "left": 0 if unfinished is None else len(unfinished.left),
        "error": None if row is None else row.get("error"),
        "notes": [note for name, note in notes if name == backend.name],
    }


@contextmanager
def _showing() -> Iterator[Callable[[str, int], None]]:
    """A bar on a terminal, a line for each backend elsewhere, on standard error."""
    to = Console(stderr=True)
    with Progress(console=to, transient=True, disable=not to.is_terminal) as progress:
        task = progress.add_task("the device", total=None)
        begun: list[str] = []

        def show(name: str, left: int) -> None:
            progress.update(task, description=name, completed=len(begun), total=len(begun) + 1 + left)
            begun.append(name)
            if not to.is_terminal:
                print(f"calibrating {name}, {left} after it", file=sys.stderr, flush=True)

        yield show


def _show(value: dict[str, Any]) -> None:
    if value["busy"]:
        print(f"warning: the machine is not quiet: {value['busy']}; what was measured may be wrong", file=sys.stderr)
    table = Table("backend", "rates", "off, on blocks of models", box=box.SIMPLE)
    for item in value["backends"]:
        state = "priors: it does not run there, or could not be measured"
        if item["measured"]:
            state = "measured" if item["settled"] else "measured on a busy machine"
            state = f"{item['left']} probes left for the next run" if item["left"] else state
        table.add_row(item["name"], state, "" if item["error"] is None else f"{item['error']:.0%}")
    to = console()
    to.print(table)
    to.print(f"{value['seconds']:.0f} s on {value['device']}")
    if value["exported"] is not None:
        to.print(f"this machine's rows are in {value['exported']}")
