"""Whole models on a GPU: eager, inductor and the mixture side by side, in one command of a few minutes.

    python -m mixbackend.benchmarks.gpu --output rows.jsonl --minutes 9

Place: a command of its own. Every row (``gpu_models``) runs in a process of its own (``gpu_worker``). With several GPUs
each has a row of its own, and takes the next one when that is measured. Where a GPU has several (``--jobs``), they
compile side by side, which disturbs what plans are chosen by; a row that is ready is timed while all others stand
still. What a row tells is printed and appended to the output file at once, a line of JSON for each part
of its record. Run again with the same file, it goes on with the rows that are missing; rows are begun only if there is
time left. ``--table`` prints what a file holds as a table.
Invariants: figures are compared within one row, in which the ways took turns. The machine's rates are measured before
the first row, so that no row's first call pays for them, or gone on with where an earlier run had no time for all of
them; what inductor compiled for one way of a row it may find in its cache for the next.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from mixbackend.backends.common.python_process import module_command
from mixbackend.benchmarks.gpu_models import ROWS
from mixbackend.benchmarks.gpu_worker import CALIBRATE, DEFAULT_WAYS, WAYS
from mixbackend.benchmarks.machine_rates import FROZEN_RATES
from mixbackend.benchmarks.peers.comparing import geometric_mean
from mixbackend.benchmarks.row_pool import TIMED, PoolLimits, run_rows
from mixbackend.benchmarks.row_process import RowProcess
from mixbackend.benchmarks.row_records import Part, keep, merged, read

_JOBS = 5
"""Rows side by side on the only GPU."""
WORKER = tuple(module_command("mixbackend.benchmarks.gpu_worker"))


def main(arguments: Sequence[str] | None = None, worker: Sequence[str] = WORKER) -> int:
    """Run the rows that are missing; 0 if none failed.

    Args:
        arguments: of the command line.
        worker: the command that measures a row, or the machine's rates.
    """
    given = _parser().parse_args(arguments)
    if given.table:
        print(table(list(merged(read(given.output)).values())))
        return 0
    end = time.monotonic() + 60.0 * given.minutes
    done = {name for name, record in merged(read(given.output)).items() if TIMED in record}
    left = [name for name in given.rows if name not in done]
    if left:
        calibrate(min(given.calibration, end - time.monotonic()), worker)
    gpus = visible_gpus()
    slots = [gpu for gpu in gpus for _ in range(given.jobs or (1 if len(gpus) > 1 else _JOBS))]
    limits = PoolLimits(end, given.least, given.timeout)
    failed = False
    for row in run_rows(left, slots, lambda name, gpu: _started(name, given, gpu, worker), limits):
        if row.failed:
            keep({"row": row.name, "failed": row.failed}, given.output)
            failed = True
    return int(failed)


def visible_gpus() -> tuple[str, ...]:
    """Of this process, as ``CUDA_VISIBLE_DEVICES`` names them; one that is empty where there is none."""
    said = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return tuple(said.split(",")) if said else tuple(map(str, range(torch.cuda.device_count()))) or ("",)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="whole models on a GPU, side by side")
    parser.add_argument("--output", type=Path, default=Path("gpu.jsonl"), help="results so far and to come")
    parser.add_argument("--rows", type=names_of(ROWS), default=list(ROWS), help="names with commas between")
    parser.add_argument("--ways", type=names_of(WAYS), default=list(DEFAULT_WAYS), help="names with commas between")
    parser.add_argument("--minutes", type=float, default=9.0, help="no row is begun that cannot end by then")
    parser.add_argument("--least", type=float, default=45.0, help="no row is begun with less seconds left")
    parser.add_argument("--timeout", type=float, default=200.0, help="seconds for a row to be ready")
    parser.add_argument("--jobs", type=int, help=f"rows at once on each GPU (default: 1, on the only one {_JOBS})")
    parser.add_argument("--turns", type=int, default=12, help="samples of each way")
    parser.add_argument("--calibration", type=float, default=120.0, help="seconds for rates that are not known yet")
    parser.add_argument("--table", action="store_true", help="print the file as a table, and run nothing")
    return parser


def names_of(known: Iterable[str]) -> Any:
    """Reads names with commas between off a command line."""
    allowed = list(known)

    def parse(text: str) -> list[str]:
        names = text.split(",")
        strangers = [name for name in names if name not in allowed]
        if strangers:
            raise argparse.ArgumentTypeError(f"{', '.join(strangers)}: choose from {', '.join(allowed)}")
        return names

    return parse


def calibrate(budget_s: float, worker: Sequence[str] = WORKER) -> None:
    """Measure the GPU's rates in a process of its own, as its first graph would; rates that are known take no time."""
    try:
        command = [*worker, CALIBRATE, f"{max(budget_s, 0.0):.0f}"]
        subprocess.run(command, check=True, timeout=max(1.5 * budget_s, 30.0))
    except (subprocess.SubprocessError, OSError) as error:
        print(f"rates were not measured: {error}", file=sys.stderr, flush=True)


def _started(name: str, given: argparse.Namespace, gpu: str, worker: Sequence[str]) -> RowProcess:
    command = [*worker, name, ",".join(given.ways), str(given.turns)]
    environment = {**os.environ, **FROZEN_RATES, "CUDA_VISIBLE_DEVICES": gpu}
    return RowProcess(command, environment, lambda part: keep(part, given.output))


def table(records: Sequence[Part]) -> str:
    """Milliseconds by row and way, and what ours gains over inductor in the same mode and in its best one."""
    ways = [way for way in WAYS if any(way in record.get("ways", {}) for record in records)]
    head = ["row", *ways, "same mode", "with graphs", "best"]
    lines = [head, *([record["row"], *_cells(record, ways)] for record in records if "ways" in record)]
    for phase in ("inference", "training"):
        gains = [gain for record in records if record.get("phase") == phase and (gain := _gain(record, "best"))]
        if mean := geometric_mean(gains):
            lines.append([f"geometric mean, {phase}", *[""] * (len(ways) + 2), f"{mean:.3f}"])
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join(rows)


def _cells(record: Part, ways: Sequence[str]) -> list[str]:
    found = [record["ways"].get(way, {}) for way in ways]
    times = [f"{item['ms']:.3f}" if "ms" in item else "failed" if "failed" in item else "" for item in found]
    gains = [_gain(record, kind) for kind in ("same", "graphs", "best")]
    return [*times, *(f"{gain:.3f}" if gain else "" for gain in gains)]


def _gain(record: Part, kind: str) -> float:
    """Inductor's time over ours; 0 where one of them is not known."""
    pairs = {"same": ("inductor", "ours"), "graphs": ("inductor-graphs", "ours-graphs")}
    if kind in pairs:
        theirs, mine = (_best(record, [way]) for way in pairs[kind])
    else:
        theirs, mine = (best_of(record, side) for side in ("inductor", "ours"))
    return theirs / mine if theirs and mine else 0.0


def best_of(record: Part, side: str) -> float:
    """Milliseconds of the quickest way of ``inductor`` or of ``ours``; 0 where none is known."""
    return _best(record, [way for way in WAYS if way.startswith(side)])


def _best(record: Part, ways: Iterable[str]) -> float:
    return min((record["ways"][way]["ms"] for way in ways if "ms" in record["ways"].get(way, {})), default=0.0)


if __name__ == "__main__":
    sys.exit(main())
