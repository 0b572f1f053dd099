"""Processes that build engines, one after the other.

Place: below ``building``; each runs ``worker``. Input: a folder that asks for an engine. Output: what the process left
in it, or an exception.
Why they stay: to begin with, a process loads a gigabyte of TensorRT's kernels, which took 7 s alone and up to 40 s with
eight at it, for engines that are built in seconds.
Invariants: a process that dies or hangs costs the engine that it was at, and is not used again; one serves only calls
with the environment that it was started in; idle ones end after a while, and all of them with this process, however
that ends.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from mixbackend.backends.common import forks
from mixbackend.backends.common.python_process import module_command

logger = logging.getLogger("mixbackend")

DONE = "the folder is done"
"""Line of a process that has left a result and waits for the next folder; other lines tell what it is at."""
IDLE_S = 30.0
"""So long a process is kept that has nothing to build: it holds memory of the GPU."""
_TAIL_CHARACTERS = 1500
_CLOSING_S = 5.0


class BuildError(RuntimeError):
    """An engine could not be built; says why, with what TensorRT said."""


class Builder:
    """A process that builds.

    Args:
        module: that it runs.
    """

    def __init__(self, module: str) -> None:
        self.environment = dict(os.environ)
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in ``end``
        self._process = subprocess.Popen(
            module_command(module),
            stdin=subprocess.PIPE,  # closed when this process ends, however it ends: the other then ends, too
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._changed = threading.Condition()
        self._last = ""
        self._done = self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def build(self, folder: Path, seconds: float) -> None:
        """Build what a folder asks for.

        Raises:
            BuildError: the process died, or time ran out.
        """
        before = os.fstat(self._errors.fileno()).st_size
        self._done = False
        with suppress(OSError):
            # If nothing reads it, the way in which the process ended tells why.
            assert self._process.stdin is not None
            self._process.stdin.write(f"{folder}\n")
            self._process.stdin.flush()
        with self._changed:
            if not self._changed.wait_for(lambda: self._done or self._ended, seconds):
                raise BuildError(
                    f"no engine within {seconds:g} s, at last in: {self._last or 'the start'} "
                    "(MIXBACKEND_TENSORRT_SECONDS allows more, MIXBACKEND_TENSORRT_LEVEL asks for less)"
                )
            if self._done:
                return
        code = self._process.wait()
        self._errors.seek(before)
        said = self._errors.read().decode(errors="replace")[-_TAIL_CHARACTERS:].strip()
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise BuildError(f"the process that builds ended with {cause}: {said}")

    @property
    def alive(self) -> bool:
        """Whether it can build."""
        return self._process.poll() is None

    def end(self) -> None:
        """End the process."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        # The pipe is at its end, unless a process that left the group holds it.
        self._reader.join(_CLOSING_S)
        self._errors.close()

    def _read(self) -> None:
        lines = self._process.stdout
        assert lines is not None, "it is a pipe"
        with lines:
            for line in lines:
                text = line.strip()
                with self._changed:
                    self._done = text == DONE
                    self._last = "" if self._done else text
                    self._changed.notify_all()
                if text != DONE:
                    logger.info("tensorrt: %s", text)
        with self._changed:
            self._ended = True
            self._changed.notify_all()


_idle: list[Builder] = []
_lock = forks.long_lock()


@contextmanager
def builder(module: str) -> Iterator[Builder]:
    """A process for one build; afterwards it is there for the next one, unless the build raised."""
    taken = _take_idle() or Builder(module)
    try:
        yield taken
    except BaseException:
        taken.end()
        raise
    with _lock:
        _idle.append(taken)
    timer = threading.Timer(IDLE_S, _end_if_idle, [taken])
    timer.daemon = True
    timer.start()


def _take_idle() -> Builder | None:
    with _lock:
        for item in list(_idle):
            if item.environment == os.environ:
                _idle.remove(item)
                if item.alive:
                    return item
                item.end()
    return None


def _end_if_idle(item: Builder) -> None:
    with _lock:
        if item not in _idle:
            return
        _idle.remove(item)
    item.end()
