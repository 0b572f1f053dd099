"""``mixbackend tune MODEL``: measure placements of a model, show what came of it, and write or check its lock file.

Input: a model as ``explain`` takes it. What is measured is remembered in the cache folder, for every mode.
With ``--lock`` the placements go into a file for review; with ``--frozen`` nothing is measured or written: the model is
compiled as the file says, and everything that differs is an error.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mixbackend.commands.explain import load_model
from mixbackend.commands.output import console, lines_shown, print_json, quiet_stdout
from mixbackend.configuration import Config, load_config
from mixbackend.contracts import LockError
from mixbackend.reporting import GraphRecord, Report
from mixbackend.reporting.summary import milliseconds

if TYPE_CHECKING:
    from mixbackend.compile.mixture import Mixture

_CALLS = 7
"""Enough for the report to say what every region takes."""
_LONGEST_S = 20.0


@dataclass(frozen=True)
class Wanted:
    """What is tuned.

    Attributes:
        model: see ``explain``.
        config: configuration file, ``None`` for the defaults.
        train: forward and backward.
        device: where the model runs.
        dynamic: whether all sizes are symbolic from the first call on.
    """

    model: str
    config: str | None = None
    train: bool = False
    device: str = "cpu"
    dynamic: bool = False

    @property
    def command(self) -> str:
        """What makes the same entries of a lock file again."""
        words = ["mixbackend", "tune", self.model]
        words += ["--config", self.config] if self.config is not None else []
        words += ["--train"] if self.train else []
        words += ["--device", self.device] if self.device != "cpu" else []
        words += ["--dynamic"] if self.dynamic else []
        return shlex.join(words)


def run(wanted: Wanted, lock: Path | None, budget: float | None, frozen: bool, as_json: bool) -> int:
    """Tune one model, or check its lock file; 0 if all is well."""
    given = load_config(wanted.config)
    if frozen:
        return _check(wanted, lock, given, as_json)
    if lock is not None:
        _writable(lock)
    options: dict[str, Any] = {"search.mode": "measure", "lock": {"path": None, "frozen": False}}
    if budget is not None:
        options["search.budget_s"] = budget
    with quiet_stdout(), lines_shown(f"tuning {wanted.model}"):
        mixture, call = _compiled(wanted, given.with_options(options))
        begin = time.monotonic()
        for _ in range(_CALLS):
            call()
            if time.monotonic() - begin > _LONGEST_S:
                break
        report = mixture.report()
        written = _lock(lock, report, mixture, wanted.command) if lock is not None else None
    if as_json:
        print_json({**report.to_dict(), "lock": written})
        return 0
    _show(report, console())
    if written is not None:
        _show_lock(written)
    return 0


def _compiled(wanted: Wanted, config: Config) -> tuple[Mixture, Callable[[], None]]:
    """The mixture that compiles a model, and a function that calls the model once, in training with its backward."""
    module, args, kwargs = load_model(wanted.model, wanted.train, wanted.device)
    from mixbackend.benchmarks.models.trees import tensors_in
    from mixbackend.compile.mixture import Mixture  # after the model: a wrong name is told at once

    mixture = Mixture(config)
    compiled = torch.compile(module, backend=mixture, dynamic=True if wanted.dynamic else None)

    def call() -> None:
        with torch.set_grad_enabled(wanted.train):
            output = compiled(*args, **kwargs)
        if wanted.train:
            losses = [item.abs().float().mean() for item in tensors_in(output) if item.requires_grad]
            if not losses:
                raise typer.BadParameter(f"{wanted.model} has no output with a gradient: leave out --train")
            torch.stack(losses).sum().backward()

    return mixture, call


# --- checking --------------------------------------------------------------------------------------------------------


def _check(wanted: Wanted, lock: Path | None, given: Config, as_json: bool) -> int:
    """Compile as the lock file says; raise, or print as JSON, all that differs."""
    path = str(lock) if lock is not None else given.lock.path
    if path is None:
        raise typer.BadParameter("--frozen needs the file to check: --lock FILE, or lock.path in the configuration")
    # Frozen, the first graph that differs would end the run; all differences are wanted.
    config = given.with_options({"search.mode": "estimate", "lock": {"path": path, "frozen": False}})
    differences: list[dict[str, str]] = []
    with quiet_stdout(), lines_shown(f"checking {wanted.model}"):
        mixture, call = _compiled(wanted, config)
        call()
        try:
            mixture.check_lock(wanted.command)
        except LockError as error:
            if not as_json:
                raise
            found = getattr(error, "differences", None)
            row = {"graph": "", "what": error.what, "locked": "", "here": ""}
            differences = [row] if found is None else [item.to_dict() for item in found]
    if as_json:
        print_json({**mixture.report().to_dict(), "lock": {"path": path, "differences": differences}})
        return 1 if differences else 0
    graphs = mixture.report().graphs
    print(f"{path}: holds for {len(graphs)} graph{'' if len(graphs) == 1 else 's'}")
    return 0


# --- writing ---------------------------------------------------------------------------------------------------------


def _writable(lock: Path) -> None:
    """Say before anything is measured that a file cannot be written, or holds what is no lock file."""
    from mixbackend.locking.reading import read_lock

    if not lock.resolve().parent.is_dir() or lock.is_dir():
        raise typer.BadParameter(f"{lock} cannot be written: it should be a file in a folder that is there")
    if lock.exists():
        read_lock(lock)


def _lock(lock: Path, report: Report, mixture: Mixture, command: str) -> dict[str, Any]:
    """Write the file; says what changed in it."""
    from mixbackend.locking.making import locked_graphs, locked_joints, merged
    from mixbackend.locking.reading import read_lock
    from mixbackend.locking.text import write_lock

    graphs = locked_graphs(report.graphs, command)
    named = {graph.key for graph in graphs}
    nameless = [item.graph.id for item in report.graphs if item.identity is None and "+" not in item.graph.id]
    joints = locked_joints(mixture.joint_decisions(), command)
    old = read_lock(lock) if lock.exists() else None
    file, change = merged(old, mixture.made_with(), graphs, joints, command)
    write_lock(lock, file)
    return {
        "path": str(lock),
        "graphs": len(named),
        "added": list(change.added),
        "changed": list(change.changed),
        "same": list(change.same),
        "removed": list(change.removed),
        "kept": list(change.kept),
        "left_out": list(change.left_out),
        "without_text": nameless,
        "one_of_several": [item.graph.id for item in report.graphs if item.regimes],
    }


# --- showing ---------------------------------------------------------------------------------------------------------


def _show(report: Report, to: Console) -> None:
    for record in report.graphs:
        _show_graph(record, to)
    for event in report.events:
        to.print(Text(str(event)))


def _show_graph(record: GraphRecord, to: Console) -> None:
    owners = ", ".join(f"{backend} {count}" for backend, count in record.nodes_per_backend().items())
    shape = "dynamic shapes" if record.graph.dynamic else "static shapes"
    to.print()
    to.print(Text(f"{record.graph.id}: {record.graph.phase}, {shape}", style="bold"))
    if record.tuning is None:
        to.print(Text("  nothing was measured: there is one placement, or the events below say why"))
    else:
        to.print(_trials(record))
        to.print(Text(f"  taken: {record.tuning.chosen}"))
    to.print(Text(f"  {len(record.plan.regions)} regions; nodes per backend: {owners or 'none'}"))


def _trials(record: GraphRecord) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("plan", "outcome"):
        table.add_column(heading, overflow="fold")
    for heading in ("estimated ms", "measured ms", "spread ms", "against the best"):
        table.add_column(heading, justify="right")
    assert record.tuning is not None
    best = min((trial.median_s for trial in record.tuning.trials if trial.median_s is not None), default=0.0)
    for trial in record.tuning.trials:
        ratio = "-" if trial.median_s is None or best <= 0.0 else f"{trial.median_s / best:.2f}"
        seconds = (milliseconds(value) for value in (trial.estimated_s, trial.median_s, trial.spread_s))
        table.add_row(Text(trial.choice), Text(trial.status), *seconds, ratio)
    return table


def _show_lock(written: dict[str, Any]) -> None:
    parts = [f"{len(written[word])} {word}" for word in ("added", "changed", "same", "removed") if written[word]]
    graphs = "1 graph" if written["graphs"] == 1 else f"{written['graphs']} graphs"
    print(f"{written['path']}: {graphs} written" + (f" ({', '.join(parts)})" if parts else ""))
    if written["kept"]:
        print(f"  entries of other commands that stay as they were: {', '.join(written['kept'])}")
    for command in written["left_out"]:
        print(f"  made with other versions and left out: run `{command} --lock {written['path']}` again")
    for graph in written["one_of_several"]:
        print(f"  {graph} has a plan per range of sizes: the file holds that of this call, for all sizes")
    for graph in written["without_text"]:
        print(f"  {graph} has no text and is not in the file: it is always placed as usual, and an error when frozen")
