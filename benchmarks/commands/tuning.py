"""``mixbackend bench tuning``: whether tuning agrees with itself, and what a second run takes.

Output: tables, or with ``--json`` one object; progress goes to standard error.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mixbackend.benchmarks.commands.progress import chosen, left_in_order, names_in, progress_bar, time_limit
from mixbackend.commands.output import console, print_json, quiet_stdout

if TYPE_CHECKING:
    from mixbackend.benchmarks.peers.request import PeerCase
    from mixbackend.benchmarks.peers.turns import Options

DEFAULT_MODELS = ("minilm", "mobilenetv3-large", "suite:resnet18", "suite:GPT2ForSequenceClassification")


def run(
    models: str,
    phase: str,
    tries: int,
    budget: float,
    options: Options,
    minutes: float,
    resume: Path,
    label: str,
    as_json: bool,
) -> None:
    """Tune every model again and again, and print what came of it."""
    from mixbackend.benchmarks import tuning
    from mixbackend.benchmarks.peers.turns import calibrate
    from mixbackend.benchmarks.results import ResultFile
    from mixbackend.benchmarks.tuning_summary import print_tuning, summarise

    cases = cases_named(models or ",".join(DEFAULT_MODELS), phase)
    if tries < 1:
        raise typer.BadParameter(f"{tries} tries should be one or more")
    file = ResultFile(resume)
    is_over = time_limit(minutes)
    with quiet_stdout(), left_in_order(), progress_bar("tuning") as begin:
        expected_s = tuning.expected_s(cases, tries, budget, options, file, label)
        show = begin(expected_s)
        show("probing the machine", 0.0)
        trouble = calibrate(options) if expected_s else ""
        found = tuning.run(cases, tries, budget, options, file, label, show, is_over)
    settings = {
        "models": [case.model for case in cases],
        "phase": phase,
        "backends": list(options.backends),
        "tries": tries,
        "budget_s": budget,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "threads": options.threads,
        "calibration": trouble,
        "label": label,
    }
    value = summarise(found, tries, settings)
    if as_json:
        print_json(value)
        return
    print_tuning(value, console())
    if trouble:
        console().print(f"the machine {trouble}")


def chosen_backends(names: str) -> tuple[str, ...]:
    """Usable backends by name, all of them if none is named; the fallback need not be named.

    Raises:
        typer.BadParameter: one cannot be used here.
    """
    from mixbackend.benchmarks.peers.catalogue import usable_backends

    try:
        return chosen(names, usable_backends(), "usable backend")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def cases_named(models: str, phase: str) -> list[PeerCase]:
    """Cases of models by name, ``suite:NAME`` for those of the suite; inference with one sample, else their own batch.

    Raises:
        typer.BadParameter: a name or the phase is not known.
    """
    from mixbackend.benchmarks.peers.models import MODELS
    from mixbackend.benchmarks.peers.request import PHASES, PeerCase
    from mixbackend.benchmarks.peers.suite_models import find_model, is_of_suite

    wanted = next((name for name in PHASES if name == phase), None)
    if wanted is None:
        raise typer.BadParameter(f"{phase!r} should be one of {', '.join(PHASES)}")
    cases = []
    for name in names_in(models):
        try:
            own = find_model(name).training_batch
        except KeyError as error:
            raise typer.BadParameter(f"{error.args[0]}; there are {', '.join(MODELS)}, suite:NAME") from error
        cases.append(PeerCase(name, 1 if wanted == "inference" and not is_of_suite(name) else own, wanted, "float32"))
    return cases
