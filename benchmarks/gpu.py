"""Whole models on a GPU: eager, inductor and the mixture side by side, in one command of a few minutes.

    python -m mixbackend.benchmarks.gpu --output rows.jsonl --minutes 9

Place: a command of its own. Every row (``gpu_models``) runs in a process of its own (``gpu_worker``). A few of them
compile side by side; when all are ready, they are timed one after the other, while the rest wait. Each result is one
line of JSON, printed and appended to the output file at once. Run again with the same file, it goes on with the rows
that are missing; rows are begun only if there is time left. ``--table`` prints what a file holds as a table.
Invariants: figures are compared within one row, whose ways took turns. The machine's rates are measured before the
first row, so that no row's first call pays for them, or gone on with where an earlier run had no time for all of them;
what inductor compiled for one way of a row it may find in its cache for the next.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mixbackend.benchmarks.gpu_models import ROWS
from mixbackend.benchmarks.gpu_worker import CALIBRATE, DEFAULT_WAYS, READY, WAYS
from mixbackend.benchmarks.machine_rates import FROZEN_RATES

_LEAST_S = 45.0
"""Rows are not begun with less time left."""
_TIMING_S = 20.0
"""Seconds in which a row that is ready can be timed, even if its time to compile is over."""
_WORKER = (sys.executable, "-m", "mixbackend.benchmarks.gpu_worker")

Record = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows that are missing; 0 if none failed."""
    given = _parser().parse_args(arguments)
    if given.table:
        print(table(read(given.output)))
        return 0
    end = time.monotonic() + 60.0 * given.minutes
    done = {record["row"] for record in read(given.output) if "ways" in record}
    left = [name for name in given.rows if name not in done]
    if left:
        calibrate(min(given.calibration, end - time.monotonic()))
    failed = False
    while left and end - time.monotonic() > _LEAST_S:
        batch, left = left[: given.jobs], left[given.jobs :]
        for record in _run(batch, given.ways, given.turns, min(end, time.monotonic() + given.timeout)):
            failed |= "failed" in record
            keep(record, given.output)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="whole models on a GPU, side by side")
    parser.add_argument("--output", type=Path, default=Path("gpu.jsonl"), help="results so far and to come")
    parser.add_argument("--rows", type=_names(ROWS), default=list(ROWS), help="names with commas between")
    parser.add_argument("--ways", type=_names(WAYS), default=list(DEFAULT_WAYS), help="names with commas between")
    parser.add_argument("--minutes", type=float, default=9.0, help="no row is begun that cannot end by then")
    parser.add_argument("--timeout", type=float, default=200.0, help="seconds for the rows that compile side by side")
    parser.add_argument("--jobs", type=int, default=5, help="rows that compile side by side")
    parser.add_argument("--turns", type=int, default=12, help="samples of each way")
    parser.add_argument("--calibration", type=float, default=120.0, help="seconds for rates that are not known yet")
    parser.add_argument("--table", action="store_true", help="print the file as a table, and run nothing")
    return parser


def _names(known: Iterable[str]) -> Any:
    allowed = list(known)

    def parse(text: str) -> list[str]:
        names = text.split(",")
        strangers = [name for name in names if name not in allowed]
        if strangers:
            raise argparse.ArgumentTypeError(f"{', '.join(strangers)}: choose from {', '.join(allowed)}")
        return names

    return parse


def read(path: Path) -> list[Record]:
    """The results in a file; none if it is not there yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def keep(record: Record, path: Path) -> None:
    """Print a result and add it to the file."""
    line = json.dumps(record)
    print(line, flush=True)
    with path.open("a") as file:
        file.write(f"{line}\n")


def calibrate(budget_s: float) -> None:
    """Measure the GPU's rates in a process of its own, as its first graph would; rates that are known take no time."""
    try:
        command = [*_WORKER, CALIBRATE, f"{max(budget_s, 0.0):.0f}"]
        subprocess.run(command, check=True, timeout=max(1.5 * budget_s, 30.0))
    except (subprocess.SubprocessError, OSError) as error:
        print(f"rates were not measured: {error}", file=sys.stderr, flush=True)


def _run(names: Sequence[str], ways: Sequence[str], turns: int, end: float) -> Iterator[dict[str, Any]]:
    """Compile side by side, then measure one after the other."""
    workers = [_Worker(name, ways, turns) for name in names]
    try:
        ready = [worker.answer(end) == READY for worker in workers]
        for worker, is_ready in zip(workers, ready, strict=True):
            if not is_ready:
                yield worker.failure()
                continue
            worker.go()
            line = worker.answer(max(end, time.monotonic() + _TIMING_S))
            yield dict(json.loads(line)) if line else worker.failure()
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """One row's process."""

    def __init__(self, name: str, ways: Sequence[str], turns: int) -> None:
        self._name = name
        command = [*_WORKER, name, ",".join(ways), str(turns)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **FROZEN_RATES}
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())
        self._lines.put("")

    def answer(self, end: float) -> str:
        """Its next line; empty if it ended or the time is over."""
        try:
            return self._lines.get(timeout=max(end - time.monotonic(), 0.1))
        except queue.Empty:
            return ""

    def go(self) -> None:
        """Let it measure."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def failure(self) -> dict[str, Any]:
        """What to say of a row without figures."""
        status = self._process.poll()
        return {"row": self._name, "failed": "not done in time" if status is None else f"exit status {status}"}

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()


def table(records: Sequence[Record]) -> str:
    """Milliseconds by row and way, and what ours gains over inductor in the same mode and in its best one."""
    ways = [way for way in WAYS if any(way in record.get("ways", {}) for record in records)]
    head = ["row", *ways, "same mode", "with graphs", "best"]
    lines = [head, *([record["row"], *_cells(record, ways)] for record in records if "ways" in record)]
    for phase in ("inference", "training"):
        gains = [gain for record in records if record.get("phase") == phase and (gain := _gain(record, "best"))]
        if gains:
            mean = math.exp(sum(map(math.log, gains)) / len(gains))
            lines.append([f"geometric mean, {phase}", *[""] * (len(ways) + 2), f"{mean:.3f}"])
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join(rows)


def _cells(record: Record, ways: Sequence[str]) -> list[str]:
    found = [record["ways"].get(way, {}) for way in ways]
    times = [f"{item['ms']:.3f}" if "ms" in item else "failed" if "failed" in item else "" for item in found]
    gains = [_gain(record, kind) for kind in ("same", "graphs", "best")]
    return [*times, *(f"{gain:.3f}" if gain else "" for gain in gains)]


def _gain(record: Record, kind: str) -> float:
    """Inductor's time over ours; 0 where one of them is not known."""
    pairs = {"same": (["inductor"], ["ours"]), "graphs": (["inductor-graphs"], ["ours-graphs"])}
    all_of = ([way for way in WAYS if way.startswith("inductor")], [way for way in WAYS if way.startswith("ours")])
    theirs, mine = (_best(record, names) for names in pairs.get(kind, all_of))
    return theirs / mine if theirs and mine else 0.0


def _best(record: Record, ways: Iterable[str]) -> float:
    return min((record["ways"][way]["ms"] for way in ways if "ms" in record["ways"].get(way, {})), default=0.0)


if __name__ == "__main__":
    sys.exit(main())
