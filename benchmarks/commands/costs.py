"""``mixbackend bench costs``: estimated against measured seconds of every region, before and after calibration.

Output: tables, or with ``--json`` one object; progress goes to standard error.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mixbackend.benchmarks.commands.progress import left_in_order, names_in, progress_bar, time_limit
from mixbackend.benchmarks.commands.tuning import cases_named
from mixbackend.commands.output import console, print_json, quiet_stdout

if TYPE_CHECKING:
    from mixbackend.benchmarks.costs import Costs
    from mixbackend.benchmarks.peers.turns import Options

DEFAULT_MODELS = (
    *("minilm", "gpt2", "resnet50", "mobilenetv3-large", "vit-small"),
    *("suite:resnet18", "suite:DistilBertForMaskedLM", "suite:T5Small", "suite:convnext_base", "suite:densenet121"),
)


def run(
    models: str,
    phase: str,
    kinds: str,
    blocks: int,
    options: Options,
    minutes: float,
    resume: Path,
    label: str,
    as_json: bool,
) -> None:
    """Time the regions of every model with both kinds of costs, and print what estimates are worth."""
    from mixbackend.benchmarks import costs
    from mixbackend.benchmarks.costs_summary import print_costs, summarise
    from mixbackend.benchmarks.peers.turns import calibrate
    from mixbackend.benchmarks.results import ResultFile

    cases = cases_named(models or ",".join(DEFAULT_MODELS), phase)
    wanted = _kinds(kinds)
    if blocks < 1:
        raise typer.BadParameter(f"{blocks} blocks should be one or more")
    file = ResultFile(resume)
    is_over = time_limit(minutes)
    runs = costs.runs_for(cases, options.backends, wanted)
    with quiet_stdout(), left_in_order(), progress_bar("costs") as begin:
        to_do = costs.missing(runs, options, blocks, file, label)
        show = begin(costs.EXPECTED_S * len(to_do))
        show("probing the machine", 0.0)
        trouble = calibrate(options) if to_do else ""
        records = costs.measure(runs, options, blocks, file, label, show, is_over)
    left = [str(item) for item in costs.missing(runs, options, blocks, file, label)]
    settings = {
        "models": [case.model for case in cases],
        "phase": phase,
        "backends": list(options.backends),
        "costs": wanted,
        "blocks": blocks,
        "threads": options.threads,
        "calibration": trouble,
        "left": left,
        "label": label,
    }
    value = summarise(records, settings)
    if as_json:
        print_json(value)
        return
    print_costs(value, console())
    if trouble:
        console().print(f"the machine {trouble}")
    if left:
        console().print(f"not measured yet, run the same command again: {len(left)} of {len(runs)} processes")


def _kinds(text: str) -> list[Costs]:
    from mixbackend.benchmarks.costs import COSTS

    wanted = [kind for kind in COSTS if kind in names_in(text)]
    if not wanted or len(wanted) < len(names_in(text)):
        raise typer.BadParameter(f"--costs {text!r} should be of {', '.join(COSTS)}")
    return wanted
