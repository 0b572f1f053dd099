"""``mixbackend bench peers``: ``auto()`` against eager, inductor, ONNX Runtime and OpenVINO, whole models at true size.

Output: tables, or with ``--json`` one object; progress goes to standard error.
Exit status: 0 if every mixture ran and was right, else 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixbackend.benchmarks.commands.progress import chosen, left_in_order, names_in, progress_bar, time_limit
from mixbackend.benchmarks.models.registry import models as suite_entries
from mixbackend.benchmarks.peers import runner
from mixbackend.benchmarks.peers.catalogue import groups, is_ours, peer_names, usable_backends
from mixbackend.benchmarks.peers.models import MODELS, TRAINED
from mixbackend.benchmarks.peers.request import DTYPES, PHASES
from mixbackend.benchmarks.peers.suite_models import CHOICE, PREFIX, find_model
from mixbackend.benchmarks.peers.suite_models import TRAINED as SUITE_TRAINED
from mixbackend.benchmarks.peers.summary import summarise
from mixbackend.benchmarks.peers.tables import print_peers
from mixbackend.benchmarks.peers.turns import Options, calibrate, measure_machine
from mixbackend.benchmarks.results import ResultFile
from mixbackend.commands.output import console, print_json, quiet_stdout

if TYPE_CHECKING:
    from mixbackend.benchmarks.peers.request import PeerCase
    from mixbackend.benchmarks.peers.turns import Show

TRUE_SIZE = "true-size"
"""Stands for the twelve models at true size."""


def main(arguments: Sequence[str]) -> int:
    """Run the comparison as the arguments say; the exit status."""
    parser = _parser()
    given = parser.parse_args(list(arguments))
    backends = usable_backends()
    try:
        cases = _cases(given)
        peers = _peers(given.peers, backends)
    except ValueError as error:
        parser.error(str(error))
    options = _options(given, backends)
    file = ResultFile(given.resume)
    is_over = time_limit(given.minutes)
    with quiet_stdout(), left_in_order(), progress_bar("peers") as begin:
        planned = runner.plan(cases, peers, options, file, given.label)
        show = begin(planned.expected_s)
        trouble = _calibrate(planned, options, show)
        records = runner.run(cases, peers, options, file, given.label, show, is_over=is_over)
        show("limits of the machine", 0.0)
        machine = _machine(cases, options, file)
    left = [str(case) for case, _ in runner.plan(cases, peers, options, file, given.label).work]
    value = summarise(records, machine, {**_settings(given, options, peers), "left": left, "calibration": trouble})
    if given.json:
        print_json(value)
    else:
        print_peers(value, console())
        _print_end(value["settings"])
    failed = any(is_ours(record["peer"]) and record["status"] not in ("pass", "refused") for record in records)
    return 1 if failed else 0


def _print_end(settings: Mapping[str, Any]) -> None:
    """What was not measured, and why."""
    if settings["calibration"]:
        console().print(f"the machine {settings['calibration']}")
    if settings["left"]:
        console().print(f"not measured yet, run the same command again: {', '.join(settings['left'])}")


def _calibrate(planned: runner.Plan, options: Options, show: Show) -> str:
    """Probe the machine before anything is timed, if there is something to time; what is wrong with that, or empty."""
    if not any(is_ours(peer) for _, missing in planned.work for peer in missing):
        return ""
    show("probing the machine", 0.0)
    return calibrate(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mixbackend bench peers", description="Time auto() against every peer, each in a process of its own."
    )
    add = parser.add_argument
    add(
        "--models",
        default="",
        metavar="A,B",
        help=f"of {', '.join(MODELS)}; true-size for all of these (training: {', '.join(TRAINED)}); "
        f"{PREFIX}NAME for one of the suite (default: true-size)",
    )
    add("--suite", type=int, default=0, metavar="N",
        help=f"the first N of {len(CHOICE)} models of the suite (training: of {len(SUITE_TRAINED)}): "
        f"{', '.join(CHOICE)}; the others only with --models")  # fmt: skip
    add("--batch", default="1", metavar="1,8", help="samples at once in inference")
    add("--phase", default="inference", metavar="A,B", help="inference, training")
    add("--dtype", default="float32", metavar="A,B", help="float32, bfloat16 (weights and inputs, no autocast)")
    add("--peers", default="", metavar="A,B", help="eager always takes part; singles for all only-*, placement "
        "for eager, singles, mixture and tuned (default: all)")  # fmt: skip
    add("--threads", type=int, default=0, metavar="N", help="of every pool (default: what torch takes)")
    add("--rounds", type=int, default=7, metavar="N", help="turns of every peer")
    add("--seconds", type=float, default=1.0, metavar="S", help="length of a turn")
    add("--timeout", type=float, default=900.0, metavar="S", help="for one compilation with its warm-up, or one turn")
    add("--memory", type=float, default=12.0, metavar="GB", help="private memory of one process; 0 is no limit")
    add("--environment", choices=("user", "sleeping"), default="user",
        help="of our peers: nothing set, or idle threads that sleep")  # fmt: skip
    add("--guards", choices=("checked", "skipped"), default="checked",
        help="of compiled models, once they are warm: torch's, or none, as exported models have")  # fmt: skip
    add("--minutes", type=float, default=0.0, metavar="M",
        help="begin no further case after that; run again to go on (default: no limit)")  # fmt: skip
    add("--resume", type=Path, default=Path("results") / "peers.jsonl", metavar="FILE",
        help="results file; what it holds is not run again")  # fmt: skip
    add("--label", default="", help="resume results of our changing code under this name")
    add("--json", action="store_true", help="print one JSON value")
    return parser


def _cases(given: argparse.Namespace) -> tuple[PeerCase, ...]:
    models, trained = _models(given)
    batches = [int(text) for text in names_in(given.batch)]
    if not batches or min(batches) < 1:
        raise ValueError(f"--batch {given.batch!r} should be numbers from 1 on, with commas between")
    phases = chosen(given.phase, PHASES, "phase")
    dtypes = chosen(given.dtype, DTYPES, "dtype")
    return runner.cases_for(models, trained, batches, phases, dtypes, lambda name: find_model(name).training_batch)


def _models(given: argparse.Namespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the models for inference, and for training."""
    if not 0 <= given.suite <= len(CHOICE):
        raise ValueError(f"--suite {given.suite} should be a number up to {len(CHOICE)}")
    suite = {entry.name for entry in suite_entries()}
    known = (TRUE_SIZE, *MODELS, *(f"{PREFIX}{name}" for name in (*CHOICE, *sorted(suite.difference(CHOICE)))))
    named = names_in(given.models) or (() if given.suite else (TRUE_SIZE,))
    near = [name for name in named if name not in known]
    if near:
        raise ValueError(
            f"no model is called {', '.join(near)}; there are {', '.join((TRUE_SIZE, *MODELS))}, suite:NAME"
        )
    first = [f"{PREFIX}{name}" for name in CHOICE[: given.suite]]
    trained = [f"{PREFIX}{name}" for name in SUITE_TRAINED[: given.suite]]
    both = [(MODELS, TRAINED) if name == TRUE_SIZE else ([name], [name]) for name in named]
    inferred = dict.fromkeys([*(name for group, _ in both for name in group), *first])
    learning = dict.fromkeys([*(name for _, group in both for name in group), *trained])
    return tuple(inferred), tuple(learning)


def _peers(text: str, backends: Sequence[str]) -> tuple[str, ...]:
    known = groups(backends)
    expanded = [name for part in names_in(text) for name in known.get(part, (part,))]
    return chosen(",".join(expanded), peer_names(backends), "peer")


def _options(given: argparse.Namespace, backends: tuple[str, ...]) -> Options:
    return Options(
        backends=backends,
        threads=given.threads,
        rounds=max(1, given.rounds),
        seconds=given.seconds,
        timeout_s=given.timeout,
        memory_gb=given.memory,
        environment=given.environment,
        guards=given.guards,
    )


def _machine(cases: Iterable[PeerCase], options: Options, file: ResultFile) -> dict[str, dict[str, float]]:
    dtypes = dict.fromkeys(case.dtype for case in cases)
    answers = {dtype: measure_machine(dtype, options) for dtype in dtypes}
    return {dtype: runner.best_limits(dtype, options.threads, answer, file) for dtype, answer in answers.items()}


def _settings(given: argparse.Namespace, options: Options, peers: Sequence[str]) -> Mapping[str, Any]:
    return {
        "peers": list(peers),
        "threads": options.threads,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "environment": options.environment,
        "guards": options.guards,
        "backends": list(options.backends),
        "versions": runner.package_versions(),
        "label": given.label,
    }
