"""How much memory is free, for code that plans to use some of it.

Place: asked before workers are started behind. Output: bytes, 0 where the system does not tell.
Invariants: a limit of the control group counts, where there is one; read anew at each question.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

_LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def free_bytes(system: Path = Path("/")) -> int:
    """Memory that programs can get without anything being taken from disk.

    Args:
        system: the root of the file system; another one in tests.
    """
    found = [count for count in (_of_machine(system), *_of_groups(system)) if count is not None]
    return max(0, min(found, default=0))


def _of_machine(system: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (system / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _of_groups(system: Path) -> list[int]:
    found = []
    folders = [system / "sys/fs/cgroup", system / "sys/fs/cgroup/memory"]
    with contextlib.suppress(OSError):
        for line in (system / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                folders += [folder / path.lstrip("/") for folder in folders[:2]]
    for folder in folders:
        for limit, used in _LIMITS:
            # A limit that is no number is none.
            with contextlib.suppress(OSError, ValueError):
                found.append(int((folder / limit).read_text()) - int((folder / used).read_text()))
    return found
