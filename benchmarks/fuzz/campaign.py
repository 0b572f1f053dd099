"""Many programs, in worker processes, into a file that can be resumed.

Place: between the command line and ``worker``. Input: seeds and settings, a results file. Output: rows.
Invariants: one row per program and setting; a crash or a hang costs one program, and its row says so (a crash of eager
alone is torch's); what is in the file is not run again.
"""

from __future__ import annotations

import json
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixbackend.host.processes import Worker

MODULE = "mixbackend.benchmarks.fuzz.worker"
FINDINGS = frozenset({"ours", "crash", "timeout", "out_of_memory", "broken"})
"""Statuses that a campaign must not have."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """One program in one setting.

    Attributes:
        seed, longest: of the program.
        setting: how it is compiled.
        shrink_s: seconds that go into making it small if it fails.
    """

    seed: int
    setting: str
    shrink_s: float = 0.0
    longest: int = 14

    @property
    def key(self) -> tuple[int, str, int]:
        """What a row is about."""
        return self.seed, self.setting, self.longest

    def to_line(self) -> str:
        """For a worker."""
        return json.dumps(self.__dict__)


def key_of(row: Row) -> tuple[int, str, int]:
    """Of the task that a row answers."""
    return row["seed"], row["setting"], row.get("longest", Task.longest)


def rows_of(path: Path) -> list[Row]:
    """What a results file holds; a line that was cut off is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def _crash(answer: Row, cache: Path) -> Row:
    """A crash, with where the process was, innermost first; torch's where eager alone ran."""
    stack, eager_alone = cache / "crash.txt", cache / "eager.txt"
    told = stack.read_text(encoding="utf-8")[:3000] if stack.exists() else ""
    status = "torch" if eager_alone.exists() else answer["status"]
    return {**answer, "status": status, "detail": f"{answer['detail']}\n{told}"}


class Campaign:
    """A run over tasks.

    Args:
        tasks: what is to be done, in order.
        path: results, a line of JSON each; ``None`` keeps them in memory alone.
        jobs: worker processes.
        timeout_s: of one program; shrinking may take as long again.
        per_worker: programs after which a worker is replaced: torch keeps memory of each.
        end_s: no program is begun after so many seconds.
        tell: called with each row.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        path: Path | None,
        jobs: int = 1,
        timeout_s: float = 120.0,
        per_worker: int = 60,
        end_s: float = float("inf"),
        tell: Callable[[Row], None] = lambda row: None,
    ) -> None:
        self._path, self._timeout_s, self._per_worker, self._tell = path, timeout_s, per_worker, tell
        self.rows = rows_of(path) if path is not None else []
        if path is not None and path.exists() and not path.read_text(encoding="utf-8").endswith("\n"):
            # A line that was cut off must not take the next one along.
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")
        done = {key_of(row) for row in self.rows}
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        for task in tasks:
            if task.key not in done:
                self._tasks.put(task)
        self._end = time.monotonic() + end_s
        self._lock = threading.Lock()
        self._jobs = jobs

    def run(self) -> list[Row]:
        """All rows, those of before too."""
        threads = [threading.Thread(target=self._serve) for _ in range(self._jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.rows

    def _serve(self) -> None:
        worker: Worker | None = None
        served = 0
        cache = tempfile.mkdtemp(prefix="mixbackend-fuzz-")
        try:
            while time.monotonic() < self._end:
                try:
                    task = self._tasks.get_nowait()
                except queue.Empty:
                    break
                wait = self._timeout_s + task.shrink_s * 2
                if worker is None:
                    worker, served = Worker(task, MODULE, 1, self._variables(cache)), 0
                    answer = worker.answer(wait)
                else:
                    answer = worker.tell(task.__dict__, wait)
                served += 1
                lost = answer["status"] in ("crash", "timeout", "out_of_memory")
                answer = _crash(answer, Path(cache)) if answer["status"] == "crash" else answer
                self._keep({"seed": task.seed, "setting": task.setting, "longest": task.longest, **answer})
                if served >= self._per_worker or lost:
                    worker.close()
                    worker = None
        finally:
            if worker is not None:
                worker.close()
            shutil.rmtree(cache, ignore_errors=True)

    @staticmethod
    def _variables(cache: str) -> dict[str, str | None]:
        # Costs are priors, and nothing of other runs is known: the same seed is placed alike.
        return {"MIXBACKEND_CALIBRATE": "0", "XDG_CACHE_HOME": cache, "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor"}

    def _keep(self, row: Row) -> None:
        with self._lock:
            self.rows.append(row)
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            self._tell(row)
