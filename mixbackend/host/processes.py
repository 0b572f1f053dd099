"""Worker processes: start one, ask it, stop it.

Place: under tuning, the suite, the demo's timings: everything that needs a model in a process of its own.
Input: a request that is one line of JSON. Output: the worker's answers as dictionaries, always with a ``status``.
Invariants: a worker and what it started ends with ``close``, and with the asking process however that ends; an answer
that does not come in time, a crash and memory running out are answers too, never exceptions.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from mixbackend.backends.common import forks
from mixbackend.backends.common.python_process import module_command

Answer = dict[str, Any]


class AnyRequest(Protocol):
    """What a worker is started with: one line of JSON."""

    def to_line(self) -> str:
        """The line."""
        ...


_TAIL_CHARACTERS = 1500
_PR_SET_PDEATHSIG = 1
"""Of ``linux/prctl.h``."""
_CLOSING_SECONDS = 5.0


class Worker:
    """One worker process with its request.

    Args:
        request: what it shall do.
        module: what is run; it reads the request as its first line of input.
        threads: for OpenMP and whatever else reads ``OMP_NUM_THREADS``; 0 leaves the environment alone.
        variables: further environment variables; ``None`` takes one away.
    """

    def __init__(
        self,
        request: AnyRequest,
        module: str,
        threads: int = 0,
        variables: Mapping[str, str | None] | None = None,
    ) -> None:
        self.request = request
        wanted: dict[str, str | None] = {**os.environ, **(variables or {})}
        environment = {name: value for name, value in wanted.items() if value is not None}
        if threads:
            environment["OMP_NUM_THREADS"] = str(threads)
        self._errors = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            module_command(module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            start_new_session=True,
        )
        _warden.add(self._process.pid)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._early: list[str | None] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._write(request.to_line())

    def wait(self, timeout_s: float) -> bool:
        """Whether there is an answer, or comes one in that time; the worker goes on if not."""
        if not self._early:
            with contextlib.suppress(queue.Empty):
                self._early.append(self._lines.get(timeout=timeout_s))
        return bool(self._early)

    def answer(self, timeout_s: float) -> Answer:
        """The next answer, or one that says what went wrong instead."""
        try:
            line = self._early.pop() if self._early else self._lines.get(timeout=timeout_s)
        except queue.Empty:
            self.close()
            return {"status": "timeout", "detail": f"no answer within {timeout_s:g} s"}
        return json.loads(line) if line is not None else self._death()

    def time_calls(self, calls: int, timeout_s: float) -> Answer:
        """Ask a speed worker for the seconds of each of ``calls`` calls."""
        return self.tell({"calls": calls}, timeout_s)

    def tell(self, message: Mapping[str, Any], timeout_s: float) -> Answer:
        """Send a worker that is ready one more line, and take its answer."""
        self._write(json.dumps(message))
        return self.answer(timeout_s)

    def pause(self) -> None:
        """Stop the worker and what it started: it uses no processor until ``resume``, whatever its threads wait for."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused worker go on."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End the worker and every process it started."""
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._signal(signal.SIGKILL)
        self._process.wait()
        # The pipe is at its end, unless a process that left the group holds it.
        self._reader.join(_CLOSING_SECONDS)
        _warden.discard(self._process.pid)
        self._errors.close()

    def _signal(self, number: signal.Signals) -> None:
        signal_session(self._process.pid, number)

    def _write(self, line: str) -> None:
        stream = self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # a worker that died says so in its next answer
            if stream is not None:
                stream.write(line + "\n")
                stream.flush()

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None, "it is a pipe"
        with stream:
            for line in stream:
                self._lines.put(line)
        self._lines.put(None)

    def _death(self) -> Answer:
        code = self._process.wait()
        self._errors.seek(0)
        tail = self._errors.read()[-_TAIL_CHARACTERS:].strip()
        if any(word in tail for word in ("MemoryError", "std::bad_alloc", "can't allocate memory")):
            return {"status": "out_of_memory", "detail": tail}
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return {"status": "crash", "detail": f"{cause}: {tail}"}


class _Warden:
    """This process's end of ``process_warden``; started with the first worker, and again in a fork."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._owner = 0
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def add(self, group: int) -> None:
        with self._lock:
            if self._owner != os.getpid():
                self._owner, self._groups, self._process = os.getpid(), set(), None
            self._groups.add(group)
            if not self._send(f"+{group}"):
                self._start()

    def discard(self, group: int) -> None:
        with self._lock:
            self._groups.discard(group)
            self._send(f"-{group}")

    def _start(self) -> None:
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("process_warden.py")), str(os.getpid())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd="/", start_new_session=True
        )
        self._send("\n".join(f"+{group}" for group in sorted(self._groups)))

    def _send(self, text: str) -> bool:
        if self._process is None or self._process.stdin is None or self._owner != os.getpid():
            return False
        try:
            self._process.stdin.write(text.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return False
        return True

    def end(self) -> None:
        if self._process is not None and self._owner == os.getpid() and self._process.stdin is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._process.stdin.close()
                self._process.wait(_CLOSING_SECONDS)


_warden = _Warden()
atexit.register(_warden.end)


def signal_session(leader: int, number: signal.Signals) -> None:
    """Send a signal to every process of a session, also to those that made groups of their own.

    Args:
        leader: the process that began the session; on systems without ``/proc`` only its group is reached.
    """
    members = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        with contextlib.suppress(OSError):
            if name.isdigit() and os.getsid(int(name)) == leader:
                members.append(int(name))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)
    for member in members:
        with contextlib.suppress(OSError):
            os.kill(member, number)


def end_with_parent() -> None:
    """Called in a worker: let the system end it when the asking process ends in whatever way.

    A worker that is paused would else stay so for ever. Only Linux knows how; elsewhere a worker ends with its input.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def begin_answering() -> tuple[str, Callable[[Answer], None]]:
    """Called first in a worker: the line of its request, and a function that sends an answer.

    The worker ends with the asking process. What libraries print goes to standard error.
    """
    end_with_parent()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(answer: Answer) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    return sys.stdin.readline(), send


def memory_bytes() -> int:
    """All memory of the machine, 0 if it does not tell: more would be taken from disk."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0


def limit_memory(private_bytes: int) -> None:
    """Called in a worker: let it fail when it takes more private memory than that; 0 is no limit.

    A limit that the process has already, from the process that started the asking one, holds if it is lower.
    """
    _, present = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [limit for limit in (private_bytes, present) if limit not in (0, resource.RLIM_INFINITY)]
    if limits:
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), min(limits)))


def ask(
    request: AnyRequest,
    module: str,
    timeout_s: float,
    threads: int = 0,
    variables: Mapping[str, str | None] | None = None,
) -> Answer:
    """Start a worker for one request, take its one answer and end it; adds ``seconds`` of the whole process."""
    start = time.perf_counter()
    worker = Worker(request, module, threads, variables)
    try:
        answer = worker.answer(timeout_s)
    finally:
        worker.close()
    return {**answer, "seconds": time.perf_counter() - start}
