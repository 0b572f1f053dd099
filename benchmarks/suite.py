"""``mixbackend bench suite``: the model suite from the command line.

Place: the outermost layer; parses options, calls ``runner`` or ``speed``, prints by ``tables`` and ``precision_table``.
Output: tables, or with ``--json`` one object ``{"summary", "records"}``; progress goes to standard error. ``--table``
prints what a results file holds, and runs nothing.
Exit status: 0 if nothing failed that ``aot_eager`` can run, else 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from mixbackend.benchmarks.one_model.precision import PRECISIONS
from mixbackend.benchmarks.one_model.protocol import MIXTURE, MODES, plain_configuration
from mixbackend.benchmarks.precision_table import table
from mixbackend.benchmarks.results import Record, ResultFile
from mixbackend.benchmarks.runner import PHASES, REFERENCE_BACKEND, SuiteOptions, run_suite
from mixbackend.benchmarks.speed import run_speed
from mixbackend.benchmarks.tables import print_accuracy, print_speed, summarise_accuracy, summarise_speed
from mixbackend.commands.output import console, print_json


def main(arguments: Sequence[str]) -> int:
    """Run the suite as the arguments say; the exit status."""
    parser = _parser()
    given = parser.parse_args(list(arguments))
    try:
        options = _options(given)
        if given.table:
            print(table(ResultFile(options.output).records()))
            return 0
        progress = Console(stderr=True)
        if given.speed:
            records = run_speed(options, progress, given.rounds, _names(given.peers))
        else:
            records = run_suite(options, progress)
    except KeyError as error:
        parser.error(str(error.args[0]))
    if given.json:
        summary = summarise_speed(records) if given.speed else summarise_accuracy(records)
        print_json({"summary": summary, "records": records})
    else:
        (print_speed if given.speed else print_accuracy)(records, console())
    return 1 if any(is_our_failure(record) for record in records) else 0


def is_our_failure(record: Record) -> bool:
    """Whether a case failed that eager can run and, as far as is known, ``aot_eager`` too."""
    if record["status"] in ("pass", "eager_two_runs_differ", "eager_failed", "load_failed"):
        return False
    reference = record.get(REFERENCE_BACKEND)
    return reference is None or reference["status"] == "pass"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mixbackend bench suite", description="Run the suite of real models.")
    add = parser.add_argument
    add("--models", default="", metavar="A,B", help="entries by name (default: all)")
    add("--family", default="", metavar="A,B", help="hf, timm, torchbench (default: all)")
    add("--phase", choices=(*PHASES, "both"), default="both")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="a GPU's rates are measured first")
    add("--precision", default="float32", metavar="A,B", help=f"for inference and training: {_precisions()}")
    add("--mode", choices=MODES, default="default", help="of torch.compile")
    add("--small-first", action="store_true", help="smallest graphs first, not family by family")
    add("--backend", default=MIXTURE, metavar="NAME", help="or a peer: aot_eager, inductor, eager")
    add("--backends", default="", metavar="A,B", help="backends the mixture may use, as onnxruntime,eager")
    add("--config", type=Path, metavar="FILE", help="configuration of the mixture (YAML)")
    add("--timeout", type=float, default=600.0, metavar="S", help="seconds for one case, compilation included")
    add("--minutes", type=float, default=0.0, metavar="M", help="for the whole run; run again to go on (default: any)")
    add("--calibration", type=float, default=60.0, metavar="S", help="seconds for rates of a GPU not known yet")
    add(
        "--memory", type=float, metavar="GB", help="private memory of one case, 0 is no limit (default: 12, on a GPU 0)"
    )
    add("--jobs", type=int, default=1, metavar="N", help="cases at a time, each with its share of the cores")
    add("--keep", type=int, default=1, metavar="N", help="cases that one process serves, until one of them fails")
    add("--output", type=Path, metavar="FILE", help="results file (default: results/suite.jsonl or speed.jsonl)")
    add("--label", default="", help="resume results of other code under this name")
    add("--retry-failed", action="store_true", help="run cases again that did not pass")
    add("--always-training-mode", action="store_true", help="train TorchBench models in training mode too")
    add("--speed", action="store_true", help="time the mixture against eager, inductor and each backend alone")
    add("--peers", default="", metavar="A,B", help="with --speed: only these beside eager, as inductor")
    add("--rounds", type=int, default=11, metavar="N", help="with --speed: interleaved rounds")
    add("--json", action="store_true", help="print one JSON value")
    add("--table", action="store_true", help="print what the results file holds by precision, and run nothing")
    return parser


def _precisions() -> str:
    return "; ".join(", ".join(names) for names in PRECISIONS.values())


def _options(given: argparse.Namespace) -> SuiteOptions:
    wanted = _names(given.precision)
    known = dict.fromkeys(name for names in PRECISIONS.values() for name in names)
    precisions = tuple(name for name in known if name in wanted)
    unknown = set(wanted) - set(known)
    if unknown:
        raise KeyError(f"no precision {', '.join(sorted(unknown))}; there are {_precisions()}")
    if given.speed and (given.device, given.mode, precisions) != ("cpu", "default", ("float32",)):
        raise KeyError("--speed is for the processor and float32; python -m mixbackend.benchmarks.gpu times on a GPU")
    memory_gb = given.memory if given.memory is not None else 12.0 if given.device == "cpu" else 0.0
    return SuiteOptions(
        models=_names(given.models),
        families=_names(given.family),
        phases=PHASES if given.phase == "both" else (given.phase,),
        backend=given.backend,
        configuration=_configuration(given.config, _names(given.backends)),
        precisions=precisions,
        device=given.device,
        mode=given.mode,
        small_first=given.small_first,
        timeout_s=given.timeout,
        minutes=given.minutes,
        calibration_s=given.calibration,
        memory_gb=memory_gb,
        jobs=max(1, given.jobs),
        keep=max(1, given.keep),
        output=given.output or Path("results") / ("speed.jsonl" if given.speed else "suite.jsonl"),
        always_training_mode=given.always_training_mode,
        retry_failed=given.retry_failed,
        label=given.label,
    )


def _configuration(file: Path | None, backends: Sequence[str]) -> Mapping[str, Any]:
    """The configuration as plain data: it crosses to worker processes and is part of every result's key."""
    configuration = plain_configuration(file) if file is not None else {}
    return {**configuration, "backends": list(backends)} if backends else configuration


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)
