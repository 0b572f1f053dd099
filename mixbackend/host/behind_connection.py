"""The governor of what works behind, as the user's process talks to it.

Place: between ``background`` and ``behind_governor``. Input and output: messages, as the governor's docstring has them.
Invariants: nothing waits: what a full pipe does not take is sent later, and what was not said yet is not waited for.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from mixbackend.backends.common.python_process import module_command
from mixbackend.host.behind_budget import Limits
from mixbackend.host.behind_process import group_of_its_own
from mixbackend.host.lines_out import LinesOut
from mixbackend.host.process_tree import send

_GOVERNOR = "mixbackend.host.behind_governor"
_AT_EXIT_S = 0.2


class Pipe(Protocol):
    """A governor as it is talked to."""

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send it a message, now or as soon as it takes one."""
        ...

    def hear(self) -> list[dict[str, Any]] | None:
        """What it said since; ``None`` when it is gone."""
        ...

    def end(self) -> None:
        """End it and everything behind it."""
        ...

    def leave(self) -> None:
        """In a fork: let go of what belongs to the parent."""
        ...


class GovernorProcess:
    """The real one.

    Args:
        limits: what this process may have behind.
        lock: file that the one builder of the cache folder holds.
    """

    def __init__(self, limits: Limits, lock: Path) -> None:
        self._process = subprocess.Popen(
            module_command(_GOVERNOR),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            **group_of_its_own(),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._out, self._stdout = LinesOut(self._process.stdin), self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)
        self._rest = b""
        self._groups: set[int] = set()
        self.tell({"limits": asdict(limits), "lock": str(lock)})

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send it a message, now or as soon as it takes one."""
        self._out.tell(message)

    def hear(self) -> list[dict[str, Any]] | None:
        """What it said since; ``None`` when it is gone."""
        self._out.send()
        data = self._stdout.read(1 << 16)
        if data is None:
            return []
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        messages: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self._groups.update(message["group"] for message in messages if "group" in message)
        return messages

    def end(self) -> None:
        """End it and everything behind it; waits no longer than a moment."""
        with contextlib.suppress(OSError, ValueError):
            self.hear()
        self._process.kill()
        for group in (*self._groups, self._process.pid):
            send(group, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_AT_EXIT_S)
        self.leave()

    def leave(self) -> None:
        """In a fork: let go of what belongs to the parent."""
        self._out.close()
        self._stdout.close()
