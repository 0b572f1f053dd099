"""What jobs do in the tests of work behind; imported by workers, through ``PYTHONPATH``."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any


def where() -> dict[str, Any]:
    """How this process runs."""
    return {
        "process": os.getpid(),
        "group": os.getpgid(0),
        "session": os.getsid(0),
        "batch": os.sched_getscheduler(0) == os.SCHED_BATCH,
        "nice": os.nice(0),
    }


def note(file: str) -> str:
    """Write down who did it."""
    Path(file).write_text(str(os.getpid()))
    return file


def work(file: str, seconds: float = 1000.0) -> None:
    """Start another process and use the processor; the file says who both are."""
    child = subprocess.Popen(["sleep", "1000"])
    Path(file).write_text(f"{os.getpid()} {child.pid}")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
    child.kill()
    child.wait()


def die() -> None:
    """As a compiler that crashes."""
    os.kill(os.getpid(), signal.SIGSEGV)


def take_memory(megabytes: int) -> int:
    """More than may be had."""
    return len(bytearray(megabytes << 20))


def fail() -> None:
    """As a compiler that refuses."""
    raise ValueError("not this one")


def length(text: str) -> int:
    """Of what was sent here."""
    return len(text)
