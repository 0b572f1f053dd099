"""Whole models with TensorRT in the mixture, beside TensorRT alone and inductor's best mode; needs a GPU and TensorRT.

    python -m mixbackend.benchmarks.tensorrt_models --output tensorrt.jsonl --keep FOLDER --minutes 9

Place: a command of its own; rows are those of ``gpu_models``, and ``tensorrt_row`` is a row in a process of its own.
For short loans of a GPU: what was found is printed and appended line by line as it comes; engines, what inductor made
and decisions lie in the folder to keep. Run again with it, it goes on with what is missing.
Stages: the machine's rates, if they are not known yet; rows build side by side, shared out over the GPUs (``--jobs`` on
each), until measuring must begin; rows that have ways which are ready prepare side by side and are timed one at a time
on each GPU while no row builds; a process per row and way, one at a time on each GPU, then tells how long a start from
stored engines takes; last, weights change. A way that is not ready is left out.
Invariants: the output holds parts of records, later ones win; only what it holds is in the table.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mixbackend.backends.common.python_process import module_command
from mixbackend.benchmarks.gpu import calibrate, visible_gpus
from mixbackend.benchmarks.machine_rates import FROZEN_RATES
from mixbackend.benchmarks.peers.comparing import geometric_mean
from mixbackend.benchmarks.row_process import RowProcess
from mixbackend.benchmarks.row_records import Part, keep, merged, read
from mixbackend.benchmarks.tensorrt_row import BUILT, MIXED, WAYS, marker

MODELS = ("resnet50", "mobilenetv3-large", "convnext-tiny", "vit-b16", "bert", "swin-tiny")
"""The rows of ``benchmarks/results/tensorrt.md``: one figure each."""


@dataclass(frozen=True)
class RowSettings:
    """What a row runs, and the seconds that are kept for it.

    Attributes:
        module: that does a stage of a row.
        least_s: nothing is begun with less left.
        preparing_s, timing_s: kept for measuring: for all rows side by side, and for each of those that share a GPU.
        again_s: for a start from stored engines.
    """

    module: str = "mixbackend.benchmarks.tensorrt_row"
    least_s: float = 60.0
    preparing_s: float = 75.0
    timing_s: float = 8.0
    again_s: float = 25.0


def main(arguments: Sequence[str] | None = None, rows: RowSettings = RowSettings()) -> int:
    """Run what is missing; 0 if nothing failed and nothing is missing then."""
    given = _parser().parse_args(arguments)
    if given.table:
        print(table(merged(read(given.output))))
        return 0
    end = time.monotonic() + 60.0 * given.minutes
    if end - time.monotonic() <= rows.least_s:
        return 0
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        gpus = dict(zip(given.rows, itertools.cycle(visible_gpus()), strict=False))
        _run(_Run(folder.resolve(), given.output, given.inductor, end, gpus, rows), given)
    return 0 if not missing(merged(read(given.output)), given.rows) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="whole models with TensorRT, side by side with others")
    parser.add_argument("--output", type=Path, default=Path("tensorrt.jsonl"), help="results so far and to come")
    parser.add_argument("--keep", type=Path, help="folder for engines and decisions, for a later run to go on with")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(MODELS), help="names with commas")
    parser.add_argument("--jobs", type=int, default=3, help="rows that build side by side on each GPU")
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything")
    parser.add_argument("--inductor", choices=("max-autotune", "reduce-overhead"), default="max-autotune")
    parser.add_argument(
        "--calibration", type=float, default=120.0, help="seconds for rates that are not known; 0: none"
    )
    parser.add_argument("--only-build", action="store_true", help="measure nothing: a later run does")
    parser.add_argument("--table", action="store_true", help="print the file as a table, and run nothing")
    return parser


@dataclass(frozen=True)
class _Run:
    """What all stages need.

    Attributes:
        folder: what is kept.
        output: results.
        inductor: its mode.
        end: of the time, in seconds of the monotonic clock.
        gpus: of each row, as ``CUDA_VISIBLE_DEVICES`` names it.
        rows: what each runs.
    """

    folder: Path
    output: Path
    inductor: str
    end: float
    gpus: Mapping[str, str]
    rows: RowSettings

    @property
    def left_s(self) -> float:
        """Seconds until the end."""
        return self.end - time.monotonic()

    def process(self, stage: str, name: str, ways: Sequence[str] = ()) -> RowProcess:
        """Start a stage of a row; what it tells is kept as it comes."""
        command = module_command(self.rows.module, stage, name, "--folder", str(self.folder))
        command += ["--inductor", self.inductor, *(("--ways", ",".join(ways)) if ways else ())]
        kept = {"TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"), "CUDA_VISIBLE_DEVICES": self.gpus[name]}
        return RowProcess(command, {**os.environ, **FROZEN_RATES, **kept}, lambda part: keep(dict(part), self.output))

    def on_gpus(self, step: Callable[[str], None], names: Sequence[str], jobs: int) -> None:
        """Do something for rows, for so many at a time on each GPU."""
        with contextlib.ExitStack() as stack:
            pools = {gpu: stack.enter_context(ThreadPoolExecutor(max(1, jobs))) for gpu in set(self.gpus.values())}
            begun = [pools[self.gpus[name]].submit(step, name) for name in names]
        for row in begun:
            row.result()


def _run(run: _Run, given: argparse.Namespace) -> None:
    known, rows = merged(read(run.output)), run.rows
    unready = [name for name in given.rows if any(not marker(run.folder, name, way).exists() for way in BUILT)]
    untimed = [name for name in given.rows if "ms" not in _way(known, name, "ours")]
    if unready:
        if given.calibration:
            calibrate(min(given.calibration, run.left_s))
        most = max(Counter(run.gpus[name] for name in untimed or unready).values())
        reserve = 0.0 if given.only_build else rows.preparing_s + (rows.timing_s + rows.again_s) * most
        _build(run, unready, given.jobs, run.end - reserve)
    if given.only_build:
        return
    fresh = [name for name in given.rows if name in untimed or name in unready]
    processes = _measure(run, fresh)
    try:
        _start_again(run, given.rows)
        for process in processes:
            process.go_on()
            process.wait(run.left_s)
    finally:
        for process in processes:
            process.end()


def _build(run: _Run, names: Sequence[str], jobs: int, until: float) -> None:
    """Rows side by side; those that are not ready when time is up are ended, and told."""

    def build(name: str) -> None:
        if until - time.monotonic() < 1.0:
            return
        with run.process("build", name, BUILT) as process:
            if not process.wait(until - time.monotonic()):
                return
        if process.code:
            keep({"row": name, "failed": f"the building process ended with {process.code}"}, run.output)

    run.on_gpus(build, names, jobs)
    for name in names:
        known = merged(read(run.output)).get(name, {}).get("ways", {})
        for way in BUILT:
            if not marker(run.folder, name, way).exists() and "failed" not in known.get(way, {}):
                keep(
                    {"row": name, "ways": {way: {"left_out": "not ready in time; it goes on in a later run"}}},
                    run.output,
                )


def _measure(run: _Run, names: Sequence[str]) -> list[RowProcess]:
    """Rows with what is ready of them, timed; their processes wait to be told to go on."""
    processes = []
    for name in names:
        ways = [way for way in WAYS if way not in BUILT or marker(run.folder, name, way).exists()]
        if len(ways) > 1:
            processes.append(run.process("measure", name, ways))
    for process in processes:
        process.wait_for(lambda part: any("ms" in found for found in part.get("ways", {}).values()), run.left_s)
    return processes


def _start_again(run: _Run, names: Sequence[str]) -> None:
    """A process per row and way, one at a time on each GPU."""
    known = merged(read(run.output))

    def start(name: str) -> None:
        for way in MIXED:
            ready = marker(run.folder, name, way).exists()
            if ready and way not in known.get(name, {}).get("again", {}) and run.left_s > run.rows.again_s:
                with run.process("again", name, [way]) as process:
                    process.wait(run.left_s)

    run.on_gpus(start, names, 1)


# --- the table -------------------------------------------------------------------------------------------------------


def missing(records: Mapping[str, Part], names: Sequence[str]) -> tuple[str, ...]:
    """Ways of rows that have no time."""
    return tuple(f"{name} {way}" for name in names for way in WAYS if "ms" not in _way(records, name, way))


def _way(records: Mapping[str, Part], name: str, way: str) -> Part:
    return dict(records.get(name, {}).get("ways", {}).get(way, {}))


def table(records: Mapping[str, Part]) -> str:
    """Milliseconds per way, and the mixture over the better of the other two; their geometric means."""
    titles = (
        "model",
        *WAYS,
        "over the better",
        "over inductor",
        *(f"second start of {way} s" for way in MIXED),
        "after update s",
    )
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    ratios: dict[str, list[float]] = {"the better": [], "inductor": [], "tensorrt": []}
    for name, record in records.items():
        times = {way: _way(records, name, way).get("ms") for way in WAYS}
        others = {way: times[way] for way in ("inductor", "tensorrt") if times[way] is not None}
        over = {way: times["ours"] / others[way] for way in others if times["ours"] is not None}
        if over:
            over["the better"] = max(over.values())
        for key, ratio in over.items():
            ratios[key].append(ratio)
        again = [record.get("again", {}).get(way, {}).get("first_s", "") for way in MIXED]
        update = record.get("update", {}).get("ours", {}).get("s", "")
        cells = [
            name,
            *(_cell(times[way]) for way in WAYS),
            *(_cell(over.get(key)) for key in ("the better", "inductor")),
        ]
        lines.append(f"| {' | '.join(map(str, [*cells, *again, update]))} |")
    for key, found in ratios.items():
        if mean := geometric_mean(found):
            lines.append(f"\ngeometric mean over {key}: {mean:.3f} ({len(found)} models)")
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    raise SystemExit(main())
