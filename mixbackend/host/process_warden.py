"""Ends groups of processes when the process that started them is gone: ``python -I -S process_warden.py PROCESS``.

Place: a small process beside the workers of ``processes``, which starts it and tells it of them.
Input: the number of the process that is watched; then, on standard input, lines ``+GROUP`` and ``-GROUP``.
Output: none. When the input ends or the process has another parent, every group that is left is killed.
Why a process: nothing else outlives ``kill -9`` of the one that is watched. The system would end a worker by itself,
but not what the worker started, which may be stopped by a signal and would stay so.
Invariants: imports nothing but the standard library, so that it is there in a moment and holds little memory.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

_LOOK_EVERY_S = 1.0


def main() -> None:
    """Watch; see the module's docstring."""
    for group in watch(int(sys.argv[1])):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def watch(parent: int) -> set[int]:
    """The groups that are left when the process is gone."""
    groups: set[int] = set()
    rest = b""
    # The end of the input alone would not do: a fork of the process holds it open as well.
    while os.getppid() == parent:
        if not select.select([0], [], [], _LOOK_EVERY_S)[0]:
            continue
        data = os.read(0, 1 << 16)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    return groups


if __name__ == "__main__":
    main()
