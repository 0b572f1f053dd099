"""``mixbackend bench distributed``: training on several GPUs or gloo processes, under eager, inductor and the mixture.

Output: a table, or with ``--json`` one value; a line for each row goes to standard error as it ends.
Exit status: 0 if no row of the mixture's default mode failed or was wrong, else 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from mixbackend.benchmarks.commands.progress import chosen, left_in_order
from mixbackend.benchmarks.distributed.launch import RankProcess, free_port, run
from mixbackend.benchmarks.distributed.request import Request
from mixbackend.benchmarks.distributed.rows import CASES, PEERS, Row, record, rows, summary
from mixbackend.benchmarks.results import ResultFile, code_version, key_of
from mixbackend.commands.output import console, print_json, quiet_stdout

_CPU_BLOCK_S = 0.3


def main(arguments: Sequence[str]) -> int:
    """Run the rows that are missing; the exit status."""
    parser = _parser()
    given = parser.parse_args(list(arguments))
    try:
        cases, peers = chosen(given.cases, CASES, "case"), chosen(given.peers, PEERS, "peer")
        ranks = given.gloo or given.gpus or _gpus()
        if not ranks:
            raise ValueError("torch finds no GPU; --gloo 2 runs small models on processors")
    except ValueError as error:
        parser.error(str(error))
    file = ResultFile(given.results)
    wanted = rows(cases, peers, ranks, given.rounds, not given.no_scaling)
    settings = _settings(given)
    keys = {row: key_of(row.case, str(row.ranks), str(row.round), row.peer, settings, code_version()) for row in wanted}
    with quiet_stdout(), left_in_order(), tempfile.TemporaryDirectory() as folder:
        bench = Bench(given, ranks, Path(folder), time.monotonic() + given.seconds_at_most)

        def keep(row: Row, found: Mapping[str, Any]) -> None:
            file.append({"key": keys[row], **settings, "made_by": code_version(), **found})
            said = found.get("failed") or f"step {found['step_ms']:.2f} ms, first {max(found['first_s']):.1f} s"
            print(f"{row}: {said[-600:]} ({found['seconds']:.0f} s)", file=sys.stderr, flush=True)

        bench.run_all([row for row in wanted if file.get(keys[row]) is None], keep)
    records = [found for row in wanted if (found := file.get(keys[row])) is not None]
    left = [str(row) for row in wanted if file.get(keys[row]) is None]
    lines = summary(records)
    if given.json:
        print_json({"settings": settings, "rows": lines, "left": left})
    else:
        console().print(_table(lines, settings["device"]))
        if left:
            console().print(f"not measured yet, run the same command again: {', '.join(left)}")
    return 1 if any(line["peer"] == "mixture" and (line["failed"] or line["right"] is False) for line in lines) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mixbackend bench distributed", description=__doc__)
    add = parser.add_argument
    add("--gpus", type=int, default=0, metavar="N", help="ranks, a GPU each (default: all GPUs)")
    add("--gloo", type=int, default=0, metavar="N", help="ranks on processors, with small models")
    add("--cases", default="", metavar="A,B", help=f"of {', '.join(CASES)} (default: all)")
    add("--peers", default="", metavar="A,B", help=f"of {', '.join(PEERS)} (default: all)")
    add("--results", type=Path, default=Path("results") / "distributed.jsonl", metavar="FILE",
        help="results file; what it holds is not run again")  # fmt: skip
    add("--seconds-at-most", type=float, default=480.0, metavar="S", help="no row is begun that may not end by then")
    add("--row-seconds", type=float, default=150.0, metavar="S", help="for one row; its ranks are ended then")
    add("--least", type=float, default=20.0, metavar="S", help="no row is begun with less time left")
    add("--settle", type=float, default=15.0, metavar="S", help="for the mixture to settle")
    add("--rounds", type=int, default=1, metavar="N", help="jobs of each row on all ranks, every other order reversed")
    add("--no-scaling", action="store_true", help="leave out the rows on one rank")
    add("--json", action="store_true", help="print one JSON value")
    return parser


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _settings(given: argparse.Namespace) -> dict[str, Any]:
    from mixbackend.host.devices import device_name

    # The first card stands for all of them: ranks of one host have one kind.
    return {"device": device_name("cpu" if given.gloo else "cuda"), "kind": "gloo" if given.gloo else "nccl"}


class Bench:
    """Rows one after the other, those on one rank side by side on several GPUs.

    Args:
        given: of the command line.
        ranks: of a job.
        folder: for caches: one for a case and peer, so that its first row is compiled with none filled.
        end: when it must be over, by the monotonic clock.
    """

    def __init__(self, given: argparse.Namespace, ranks: int, folder: Path, end: float) -> None:
        self._given, self._ranks, self._folder, self._end = given, ranks, folder, end

    def run_all(self, wanted: Sequence[Row], keep: Callable[[Row, Mapping[str, Any]], None]) -> None:
        """Run rows while there is time."""
        spread = [row for row in wanted if row.ranks > 1 or self._ranks == 1]
        alone = [row for row in wanted if row.ranks == 1 and self._ranks > 1]
        side_by_side = 1 if self._given.gloo else self._ranks
        waves = [[row] for row in spread]
        waves += [alone[place : place + side_by_side] for place in range(0, len(alone), side_by_side)]
        ready: list[list[RankProcess]] = []
        try:
            for place, wave in enumerate(waves):
                if self._end - time.monotonic() < self._given.least:
                    return
                ready = ready or [self.started(row) for row in wave]
                # On GPUs the next ranks import while these compile; on processors that would take cores from them.
                ahead = waves[place + 1] if place + 1 < len(waves) and not self._given.gloo else []
                now, ready = ready, [self.started(row) for row in ahead]
                with ThreadPoolExecutor(len(wave)) as pool:
                    found = pool.map(self.run_row, wave, now, range(len(wave)))
                    for row, item in zip(wave, found, strict=True):
                        keep(row, item)
        finally:
            for process in (process for processes in ready for process in processes):
                process.end()

    def started(self, row: Row) -> list[RankProcess]:
        cache = self._cache(row)
        compilers = {"TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor", "TRITON_CACHE_DIR": f"{cache}/triton"}
        return [RankProcess({**os.environ, **compilers}) for _ in range(row.ranks)]

    def _cache(self, row: Row) -> Path:
        path = self._folder / f"{row.case}-{row.peer.replace(':', '-')}"
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def run_row(self, row: Row, processes: Sequence[RankProcess], lane: int) -> dict[str, Any]:
        begun, port, given = time.monotonic(), free_port(), self._given
        limit_s = max(1.0, min(given.row_seconds, self._end - begun))
        requests = [
            Request(
                case=row.case,
                size="small" if given.gloo else "true",
                peer=row.peer,
                rank=rank,
                ranks=row.ranks,
                gpu=None if given.gloo else rank + (lane if row.ranks == 1 else 0),
                port=port,
                cache=str(self._cache(row) / "mixbackend"),
                settle_s=given.settle,
                block_s=_CPU_BLOCK_S if given.gloo else 1.0,
                blocks=3 if given.gloo else 7,
                limit_s=limit_s,
            )
            for rank in range(row.ranks)
        ]
        outcome = run(processes, requests, limit_s)
        return record(row, outcome, time.monotonic() - begun)


def _table(lines: Sequence[Mapping[str, Any]], device: str) -> Table:
    table = Table(title=f"training steps of several ranks, {device}", box=box.SIMPLE_HEAD, pad_edge=False)
    headings = (
        "case peer ranks step_ms of_inductor scaling first_s memory_gb overlapped gradient_error bits right".split()
    )
    for heading in headings:
        table.add_column(heading.replace("_", " "), justify="left" if heading in ("case", "peer") else "right")
    for line in lines:
        if line["failed"]:
            table.add_row(line["case"], line["peer"], str(line["ranks"]), "failed", line["failed"][:60])
        else:
            shown = {
                **line,
                "overlapped": _overlapped(line),
                "first_s": max(line["first_s"]),
                "bits": line["equal_bits"],
            }
            table.add_row(*(_cell(shown.get(heading)) for heading in headings))
    return table


def _overlapped(line: Mapping[str, Any]) -> float | None:
    found = line["overlap"]
    return found["both"] / found["communication"] if found and found["communication"] else None


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) and value < 1.0 else str(value)
