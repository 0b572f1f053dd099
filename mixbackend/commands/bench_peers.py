"""``mixbackend bench peers``: ``auto()`` against eager, inductor, ONNX Runtime and OpenVINO, whole models at true size.

Output: tables, or with ``--json`` one object; progress goes to standard error.
Exit status: 0 if every mixture ran and was right, else 1.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mixbackend.benchmarks.peers import runner
from mixbackend.benchmarks.peers.catalogue import is_ours, peer_names, usable_backends
from mixbackend.benchmarks.peers.models import MODELS, TRAINED
from mixbackend.benchmarks.peers.request import DTYPES, PHASES
from mixbackend.benchmarks.peers.summary import summarise
from mixbackend.benchmarks.peers.tables import print_peers
from mixbackend.benchmarks.peers.turns import Options, measure_machine
from mixbackend.benchmarks.results import ResultFile
from mixbackend.commands.output import console, print_json, quiet_stdout

if TYPE_CHECKING:
    from mixbackend.benchmarks.peers.request import PeerCase


def main(arguments: Sequence[str]) -> int:
    """Run the comparison as the arguments say; the exit status."""
    parser = _parser()
    given = parser.parse_args(list(arguments))
    backends = usable_backends()
    try:
        cases = _cases(given)
        peers = _chosen(given.peers, peer_names(backends), "peer")
    except ValueError as error:
        parser.error(str(error))
    options = _options(given, backends)
    file = ResultFile(given.resume)
    with quiet_stdout(), _left_in_order(), _progress() as progress:
        left = runner.plan(cases, peers, options, file, given.label)
        task = progress.add_task("peers", total=left.expected_s)

        def show(text: str, behind_s: float) -> None:
            progress.update(task, description=text, advance=behind_s)

        records = runner.run(cases, peers, options, file, given.label, show)
        show("limits of the machine", 0.0)
        machine = _machine(cases, options, file)
    value = summarise(records, machine, _settings(given, options, peers))
    if given.json:
        print_json(value)
    else:
        print_peers(value, console())
    return (
        1 if any(is_ours(record["peer"]) and record["status"] not in ("pass", "refused") for record in records) else 0
    )


@contextmanager
def _left_in_order() -> Iterator[None]:
    """Let a request to end this process end the peers' and take their files away first."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mixbackend bench peers", description="Time auto() against every peer, each in a process of its own."
    )
    add = parser.add_argument
    add(
        "--models",
        default="",
        metavar="A,B",
        help=f"of {', '.join(MODELS)} (default: all; training: {', '.join(TRAINED)})",
    )
    add("--batch", default="1", metavar="1,8", help="samples at once in inference")
    add("--phase", default="inference", metavar="A,B", help="inference, training")
    add("--dtype", default="float32", metavar="A,B", help="float32, bfloat16 (weights and inputs, no autocast)")
    add("--peers", default="", metavar="A,B", help="eager always takes part (default: all)")
    add("--threads", type=int, default=0, metavar="N", help="of every pool (default: what torch takes)")
    add("--rounds", type=int, default=7, metavar="N", help="turns of every peer")
    add("--seconds", type=float, default=1.0, metavar="S", help="length of a turn")
    add("--timeout", type=float, default=900.0, metavar="S", help="for one compilation with its warm-up, or one turn")
    add("--memory", type=float, default=12.0, metavar="GB", help="private memory of one process; 0 is no limit")
    add("--environment", choices=("user", "command"), default="user",
        help="of our peers: nothing set, or what this command sets for threads")  # fmt: skip
    add("--resume", type=Path, default=Path("results") / "peers.jsonl", metavar="FILE",
        help="results file; what it holds is not run again")  # fmt: skip
    add("--label", default="", help="resume results of our changing code under this name")
    add("--json", action="store_true", help="print one JSON value")
    return parser


def _cases(given: argparse.Namespace) -> tuple[PeerCase, ...]:
    models = _chosen(given.models, tuple(MODELS), "model")
    trained = models if given.models else TRAINED
    batches = [int(text) for text in _names(given.batch)]
    if not batches or min(batches) < 1:
        raise ValueError(f"--batch {given.batch!r} should be numbers from 1 on, with commas between")
    phases = _chosen(given.phase, PHASES, "phase")
    dtypes = _chosen(given.dtype, DTYPES, "dtype")
    return runner.cases_for(models, trained, batches, phases, dtypes, lambda name: MODELS[name].training_batch)


def _options(given: argparse.Namespace, backends: tuple[str, ...]) -> Options:
    return Options(
        backends=backends,
        threads=given.threads,
        rounds=max(1, given.rounds),
        seconds=given.seconds,
        timeout_s=given.timeout,
        memory_gb=given.memory,
        environment=given.environment,
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
        "backends": list(options.backends),
        "versions": runner.package_versions(),
        "label": given.label,
    }


def _progress() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=1800.0)


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _chosen(text: str, known: Sequence[str], what: str) -> tuple[Any, ...]:
    parts = _names(text) or tuple(known)
    unknown = [part for part in parts if part not in known]
    if unknown:
        raise ValueError(f"no {what} is called {', '.join(unknown)}; there are {', '.join(known)}")
    return parts
