"""``mixbackend demo``: the main job, end to end, on a real pretrained model.

Place: a command; computation is in ``mixbackend.benchmarks``. It embeds real sentences through the mixture, shows the
placement, the agreement with eager, the neighbours of a query and the speed against eager and inductor; then it
fine-tunes a classifier and lays the loss curve beside eager's. ``--model NAME`` runs an entry of the suite instead.
Output: text, or with ``--json`` one object; progress goes to standard error.
Exit status: 1 if a result differs from eager's by more than the bounds below, or a compiled run failed.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

import mixbackend
from mixbackend.benchmarks.models import sentence_tasks
from mixbackend.benchmarks.models.registry import find
from mixbackend.benchmarks.models.sentence_encoder import build_encoder
from mixbackend.benchmarks.one_model.accuracy import Phase
from mixbackend.benchmarks.one_model.protocol import MIXTURE, MODULE, PLAIN, Request, plain_configuration
from mixbackend.benchmarks.one_model.timing import Timing, interleave, speedup
from mixbackend.commands.output import console, print_json, quiet_stdout
from mixbackend.host.processes import ask
from mixbackend.reporting.report import print_report

ENCODER = "sentence-encoder"
QUERY = "Which planet has a storm that never seems to end?"
LEAST_COSINE = 0.9999
LARGEST_LOSS_DIFFERENCE = 1e-3
WORKER_SECONDS = 600.0
SETTLE_S = 30.0
"""So long other plans are tried before the mixture is timed; on a busy machine trying all of them takes ten minutes."""

Facts = dict[str, Any]
"""What the demo found, as plain data: what ``--json`` prints, and what the text is made from."""


def main(arguments: Sequence[str]) -> int:
    """Run the demo; the exit status."""
    parser = _parser()
    given = parser.parse_args(list(arguments))
    configuration: Any = str(given.config) if given.config is not None else _mapping(given.backends)
    show = Console(stderr=True)
    run = _run_sentences if given.model == ENCODER else _run_entry
    try:
        find(given.model)
    except KeyError as error:
        parser.error(str(error.args[0]))
    with quiet_stdout(), show.status("starting") as status:
        facts = run(given, configuration, lambda text: status.update(text))
    if given.json:
        print_json({key: value for key, value in facts.items() if key != "report"})
    else:
        _print(facts, console(), given.whole_report)
    return 0 if facts["agrees"] else 1


def _run_sentences(given: argparse.Namespace, configuration: Any, show: sentence_tasks.Progress) -> Facts:
    backend = mixbackend.auto(configuration)
    encoder = build_encoder()
    show("embedding sentences by eager and by the mixture")
    agreement, nearest = sentence_tasks.embed(
        encoder, lambda module: torch.compile(module, backend=backend, dynamic=True), given.query
    )
    tuning = sentence_tasks.fine_tune(encoder, lambda module: torch.compile(module, backend=backend), given.steps, show)
    report = backend.report()
    close = agreement.least_cosine >= LEAST_COSINE and tuning.largest_difference <= LARGEST_LOSS_DIFFERENCE
    return {
        "model": given.model,
        "report": report,
        "placement": report.to_dict(),
        "agreement": dataclasses.asdict(agreement),
        "query": given.query,
        "nearest": [dataclasses.asdict(neighbour) for neighbour in nearest],
        "training": {**dataclasses.asdict(tuning), "largest_difference": tuning.largest_difference},
        "speed": _speed(given, configuration, ("inference",), show),
        "agrees": close,
    }


def _run_entry(given: argparse.Namespace, configuration: Any, show: sentence_tasks.Progress) -> Facts:
    entry = find(given.model)
    phases: tuple[Phase, ...] = ("inference", "training") if entry.train else ("inference",)
    show("placing the model")
    module, args, kwargs = entry.load()
    with torch.no_grad():
        report = mixbackend.explain(module, *args, config=configuration, **kwargs)
    judged = {}
    for phase in phases:
        show(f"holding {phase} against eager")
        request = Request("accuracy", entry.name, phase, MIXTURE, _plain(configuration))
        judged[phase] = ask(request, MODULE, WORKER_SECONDS)
    return {
        "model": given.model,
        "report": report,
        "placement": report.to_dict(),
        "judged": judged,
        "speed": _speed(given, configuration, phases, show),
        "agrees": all(answer["status"] == "pass" for answer in judged.values()),
    }


def _speed(
    given: argparse.Namespace, configuration: Any, phases: Sequence[Phase], show: sentence_tasks.Progress
) -> dict[str, dict[str, Any]]:
    """Timings per phase and peer, in interleaved rounds, each peer in a process of its own."""
    if given.no_peers:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for phase in phases:
        requests = {
            "eager": Request("speed", given.model, phase, PLAIN),
            "inductor": Request("speed", given.model, phase, "inductor"),
            "mixbackend": Request("speed", given.model, phase, MIXTURE, _plain(configuration), settle_s=SETTLE_S),
        }
        timings = interleave(requests, given.rounds, WORKER_SECONDS, progress=lambda text: show(f"speed: {text}"))
        found[phase] = {name: _timing(timings["eager"], timing) for name, timing in timings.items()}
    return found


def _timing(eager: Timing, timing: Timing) -> dict[str, Any]:
    ratio = speedup(eager, timing)
    over = None if ratio is None else {"median": ratio.median, "low": ratio.low, "high": ratio.high}
    return {**timing.to_dict(), "over_eager": over}


def _print(facts: Facts, screen: Console, whole_report: bool) -> None:
    """Everything, as text; graphs of training in one line each unless the whole report is wanted."""
    report = facts["report"]
    training = [] if whole_report else [record for record in report.graphs if record.graph.phase != "inference"]
    shown = tuple(record for record in report.graphs if record not in training)
    print_report(dataclasses.replace(report, graphs=shown), screen, full=whole_report)
    for record in training:
        shares = ", ".join(f"{backend} {count}" for backend, count in record.nodes_per_backend().items())
        screen.print(f"{record.graph.id}: nodes per backend {shares}; regions {len(record.plan.regions)}")
    if training:
        screen.print("  (--whole-report shows every region of these)")
    if "agreement" in facts:
        _print_sentences(facts, screen)
    for phase, answer in facts.get("judged", {}).items():
        screen.print(f"{phase} by the suite's accuracy rule: {answer['status']} {answer.get('detail', '')}".rstrip())
    for phase, timings in facts["speed"].items():
        _print_speed(phase, timings, screen)


def _print_sentences(facts: Facts, screen: Console) -> None:
    agreement, training = facts["agreement"], facts["training"]
    lengths = agreement["lengths"]
    screen.print(
        f"\nagreement with eager on {agreement['sentences']} sentences of {min(lengths)} to {max(lengths)} tokens: "
        f"least cosine {agreement['least_cosine']:.7f}, largest difference {agreement['largest_difference']:.2e}"
    )
    screen.print(f"\nnearest to {facts['query']!r}")
    for neighbour in facts["nearest"]:
        screen.print(f"  {neighbour['similarity']:.3f}  {neighbour['sentence']}  [{neighbour['topic']}]", markup=False)
    screen.print("\nfine-tuning the last layers and a head to tell topics apart")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("step", "loss, eager", "loss, mixbackend", "difference"):
        table.add_column(column, justify="right")
    for step, (eager, ours) in enumerate(zip(training["eager_losses"], training["losses"], strict=True), 1):
        table.add_row(str(step), f"{eager:.6f}", f"{ours:.6f}", f"{abs(eager - ours):.1e}")
    screen.print(table)
    screen.print(
        f"largest difference of the curves {training['largest_difference']:.1e}; "
        f"topics told right: {training['right_before']:.0%} before, {training['right_after']:.0%} after"
    )


def _print_speed(phase: str, timings: Mapping[str, Mapping[str, Any]], screen: Console) -> None:
    screen.print(f"\nspeed, {phase}: one batch, interleaved rounds, a process each")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "first call", "median", "spread", "over eager (quartiles)"):
        table.add_column(column)
    for name, timing in timings.items():
        if timing["median_s"] is None:
            table.add_row(name, timing["status"], timing["detail"][:80])
            continue
        ratio = timing["over_eager"]
        table.add_row(
            name,
            f"{timing['first_call_s']:.1f} s",
            f"{timing['median_s'] * 1e3:.2f} ms",
            "" if timing["spread"] is None else f"±{timing['spread']:.1%}",
            "" if ratio is None else f"{ratio['median']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f})",
        )
    screen.print(table)


def _mapping(backends: str) -> dict[str, Any] | None:
    return {"backends": [name for name in backends.split(",") if name]} if backends else None


def _plain(configuration: Any) -> Mapping[str, Any]:
    """The configuration as data that can cross to a worker process."""
    if isinstance(configuration, str):
        return plain_configuration(Path(configuration))
    return configuration or {}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mixbackend demo", description=(main.__doc__ or "").partition(";")[0] + ".")
    add = parser.add_argument
    add("--model", default=ENCODER, metavar="NAME", help="an entry of the suite instead of the sentence encoder")
    add("--backends", default="", metavar="A,B", help="backends the mixture may use, as onnxruntime,eager")
    add("--config", type=Path, metavar="FILE", help="configuration (YAML)")
    add("--query", default=QUERY, metavar="TEXT", help="sentence whose neighbours are looked for")
    add("--steps", type=_positive, default=12, metavar="N", help="of fine-tuning")
    add("--rounds", type=_positive, default=15, metavar="N", help="of the speed comparison")
    add("--no-peers", action="store_true", help="leave the speed comparison out")
    add("--whole-report", action="store_true", help="every region of the training graphs too")
    add("--json", action="store_true", help="print one JSON value")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("a whole number from 1 on")
    return int(text)
