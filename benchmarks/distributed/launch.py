"""The processes of a row: started early, told what to do, ended together.

Place: between ``rows`` and the ranks' processes (``rank``). Input: requests, one for each rank. Output: what each rank
told, or why there is no result: the failing rank's last lines.
Why early: imports take as long as a small row. Processes that wait for their request hold no GPU.
Invariants: a rank that ends badly ends the others, which would wait for it; so does the limit of time. Nothing that was
started outlives the one that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

from mixbackend.backends.common.python_process import module_command
from mixbackend.benchmarks.distributed.request import Request

RANK = tuple(module_command("mixbackend.benchmarks.distributed.rank"))
_LAST_BYTES = 1500
_GRACE_S = 5.0
"""For ranks to say that they fail as well, once one has."""
_POLL_S = 0.05

Told = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a row.

    Attributes:
        told: by each rank, in order; fewer where the row failed.
        failed: why, with the last lines of the rank that failed first; empty if nothing did.
    """

    told: tuple[Told, ...]
    failed: str = ""


class RankProcess:
    """One rank, waiting for its request.

    Args:
        environment: of the process.
        command: of a rank.
    """

    def __init__(self, environment: Mapping[str, str], command: Sequence[str] = RANK) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by end()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=dict(environment),
            start_new_session=True,
        )
        self.told: list[Told] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def code(self) -> int | None:
        """How it ended, ``None`` before."""
        return self._process.poll()

    def begin(self, request: Request) -> None:
        """Tell it what to do."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(asdict(request)) + "\n")
            self._process.stdin.flush()

    def found(self) -> Told | None:
        """Its result, if it is there."""
        return next((part for part in list(self.told) if "rank" in part and "failed" not in part), None)

    def last_lines(self) -> str:
        """Of its standard error, and what it said of its failure."""
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - _LAST_BYTES))
        said = [part["failed"] for part in list(self.told) if "failed" in part]
        return "\n".join([*said, self._errors.read().decode(errors="replace")])

    def end(self) -> None:
        """End it and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(5.0)
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):
                stream and stream.close()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            with contextlib.suppress(ValueError):
                part = json.loads(line)
                if isinstance(part, dict):
                    self.told.append(part)


def run(
    processes: Sequence[RankProcess], requests: Sequence[Request], limit_s: float, grace_s: float = _GRACE_S
) -> Outcome:
    """Let processes do what they are asked for, one each, and end them, ``grace_s`` after one has failed."""
    end = time.monotonic() + limit_s
    try:
        for process, request in zip(processes, requests, strict=True):
            process.begin(request)
        failed = _watched(processes, end, grace_s)
        told = [found for process in processes if (found := process.found()) is not None]
        return Outcome(tuple(told), failed)
    finally:
        for process in processes:
            process.end()


def _watched(processes: Sequence[RankProcess], end: float, grace_s: float) -> str:
    """Wait until all have ended well; else why not."""
    while time.monotonic() < end:
        codes = [process.code for process in processes]
        if any(codes):
            return _why(processes, grace_s)
        if all(code == 0 for code in codes):
            return "" if all(map(_answered, processes)) else "a rank ended without a result"
        time.sleep(_POLL_S)
    waiting = [rank for rank, process in enumerate(processes) if process.found() is None]
    return (
        f"not done in time: ranks {waiting}; rank {waiting[0]}: {processes[waiting[0]].last_lines()}" if waiting else ""
    )


def _answered(process: RankProcess) -> bool:
    end = time.monotonic() + _GRACE_S
    while process.found() is None and time.monotonic() < end:
        time.sleep(_POLL_S)
    return process.found() is not None


def _why(processes: Sequence[RankProcess], grace_s: float) -> str:
    first = next(rank for rank, process in enumerate(processes) if process.code)
    end = time.monotonic() + grace_s
    while time.monotonic() < end and any(process.code is None for process in processes):
        time.sleep(_POLL_S)
    process = processes[first]
    return f"rank {first} ended with status {process.code}: {process.last_lines()}"


def free_port() -> int:
    """Of this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
