"""A process that tells parts of a record, line by line, while it works.

Place: below ``gpu`` and ``tensorrt_models``: their rows may be ended at any time. Input: a command. Output: each line
of its standard output that is a part of a record, handed on at once; other lines are left alone.
Invariants: what was told is known, however the process ends; whatever it started ends with it.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from mixbackend.benchmarks.row_records import Part
from mixbackend.host.processes import signal_session


class RowProcess:
    """A process that prints parts of a record.

    Args:
        command, environment: of the process.
        take: given each part, in a thread of its own.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], take: Callable[[Part], None]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(environment),
            start_new_session=True,
        )
        self._take = take
        self._changed = threading.Condition()
        self._parts: list[Part] = []
        self._done = False
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> RowProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    @property
    def parts(self) -> tuple[Part, ...]:
        """What it told so far."""
        with self._changed:
            return tuple(self._parts)

    @property
    def code(self) -> int | None:
        """How it ended, ``None`` before."""
        return self._process.poll()

    def wait_for(self, wanted: Callable[[Part], bool], limit_s: float) -> bool:
        """Whether it told a part like this in time; it may have ended otherwise."""

        def told() -> bool:
            return self._done or any(map(wanted, self._parts))

        with self._changed:
            self._changed.wait_for(told, max(limit_s, 0.0))
            return any(map(wanted, self._parts))

    def wait(self, limit_s: float) -> bool:
        """Whether it ended in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._done, max(limit_s, 0.0))
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._done:
                self._process.wait(5.0)
        return self._done

    def go_on(self) -> None:
        """Say a line to it."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.write("go on\n")
            self._process.stdin.flush()

    def pause(self) -> None:
        """Stop it and all that it started, until ``resume``."""
        signal_session(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        signal_session(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        """End it and all that it started."""
        if self._process.poll() is None:
            signal_session(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def _read(self) -> None:
        for part in _parts(self._process.stdout or ()):
            self._take(part)
            with self._changed:
                self._parts.append(part)
                self._changed.notify_all()
        with self._changed:
            self._done = True
            self._changed.notify_all()


def _parts(lines: Iterable[str]) -> Iterator[Part]:
    """What of a process's output is a part of a record."""
    for line in lines:
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and "row" in found:
                yield found
