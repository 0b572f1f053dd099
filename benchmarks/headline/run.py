"""The runner of the headline table: cases that a results file lacks, until the time is over.

Place: under ``bench headline``. Input: cases. Output: one line of JSON per case in the results file, with what it was
measured on; run again with the same file, it goes on. Compiled code is kept in a folder of each case's own, which ends
with it: every first call is one without caches.
Invariants: cases compile side by side, and are timed one at a time while all others stand still (``row_pool``). The
machine's rates are measured before the first case.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixbackend.backends.common.python_process import module_command
from mixbackend.benchmarks.gpu import calibrate
from mixbackend.benchmarks.headline.cases import Case
from mixbackend.benchmarks.machine_rates import FROZEN_RATES
from mixbackend.benchmarks.results import installed_version
from mixbackend.benchmarks.row_pool import OVER, TIMED, Ended, PoolLimits, run_rows
from mixbackend.benchmarks.row_process import RowProcess
from mixbackend.benchmarks.row_records import Part, append, merged, read
from mixbackend.host.devices import device_name

WORKER = tuple(module_command("mixbackend.benchmarks.headline.worker"))
_PACKAGES = ("mixbackend", "torch", "triton", "transformers", "timm")


@dataclass(frozen=True, slots=True)
class Settings:
    """How cases are run.

    Attributes:
        output: results file, lines of JSON.
        device: ``cuda`` or ``cpu``.
        slots: as of ``run_rows``: how many cases compile at once, and on which GPU each.
        minutes: no case is begun that cannot end by then.
        least_s: no case is begun with less left.
        case_s: for one case to compile and to be judged.
        calibration_s: for rates that are not known yet.
        turns: samples of each way.
        settle_s: longest time until our ways try no other plans any more.
        again: run cases that failed before once more.
        worker: the command that measures a case.
    """

    output: Path
    device: str = "cuda"
    slots: tuple[str, ...] = ("",)
    minutes: float = 8.0
    least_s: float = 45.0
    case_s: float = 300.0
    calibration_s: float = 60.0
    turns: int = 12
    settle_s: float = 60.0
    again: bool = False
    worker: Sequence[str] = WORKER


def run(cases: Sequence[Case], settings: Settings, show: Callable[[str], None]) -> list[Part]:
    """Run what is missing; the records of this run.

    Args:
        show: told of each case as it ends.
    """
    end = time.monotonic() + 60.0 * settings.minutes
    done = {name for name, record in records(settings.output).items() if _counts(record, settings.again)}
    left = [case.name for case in cases if case.name not in done]
    if left and settings.device == "cuda":
        calibrate(min(settings.calibration_s, end - time.monotonic()))
    made_on = machine(settings.device)
    new: list[Part] = []
    with tempfile.TemporaryDirectory() as folder:
        for ended in _ended(left, settings, end, Path(folder)):
            if ended.failed == OVER:
                continue
            record = {**_record(ended), "made_on": made_on}
            append(record, settings.output)
            new.append(record)
            show(f"{len(done) + len(new)} of {len(cases)}: {ended.name} {ended.failed}".rstrip())
    return new


def _ended(names: Sequence[str], settings: Settings, end: float, folder: Path) -> Iterator[Ended]:
    def start(name: str, gpu: str) -> RowProcess:
        caches = folder / name.replace("/", "-")
        environment = {
            **os.environ,
            **FROZEN_RATES,
            "TORCHINDUCTOR_CACHE_DIR": str(caches),
            "TRITON_CACHE_DIR": str(caches / "triton"),
        }
        if settings.device == "cuda" and gpu:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        command = [*settings.worker, name, settings.device, str(settings.turns), str(settings.settle_s)]
        return RowProcess(command, environment, lambda _: None)

    limits = PoolLimits(end, least_s=settings.least_s, row_s=settings.case_s, timing_s=60.0)
    return run_rows(names, settings.slots, start, limits)


def _record(ended: Ended) -> dict[str, Any]:
    """A case's parts as one; a process that crashed leaves what it told before."""
    told = merged(ended.process.parts).get(ended.name, {"row": ended.name, "ways": {}})
    return {**told, **({"failed": ended.failed} if ended.failed else {})}


def _counts(record: Part, again: bool) -> bool:
    return TIMED in record or ("failed" in record and not again)


def records(path: Path) -> dict[str, dict[str, Any]]:
    """By case; where a file holds one twice, the later one."""
    return {record["row"]: dict(record) for record in read(path)}


def machine(device: str) -> Mapping[str, str]:
    """What figures belong to."""
    installed = {name: installed_version(name) for name in _PACKAGES}
    return {
        "device": device_name(device),
        "cores": str(os.cpu_count()),
        "date": time.strftime("%Y-%m-%d"),
        **{name: version for name, version in installed.items() if version},
    }
