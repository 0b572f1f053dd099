"""A process that works behind: ``python -m mixbackend.host.behind_worker MEMORY_BYTES``.

Place: started by ``behind_governor``, which holds it to its share and ends it.
Input: on standard input a line a job, ``{"work": "module:function", "data": {...}}``; ``data`` are its named arguments.
Output: a line each, ``{"status": "pass", "result": ...}``, or ``failed`` or ``out_of_memory`` with a ``detail``. All of
it is JSON. What libraries print goes to standard error.
Invariants: low priority, one thread (and compilers beside it where there are many cores), a limit of memory; ends with
the process that started it. Nothing is unpickled. It may be stopped at any moment for a while, so what runs here takes
no lock that the user's process waits for: it writes files that appear whole, never the database.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from typing import Any

from mixbackend.host.processes import end_with_parent, limit_memory

_LONGEST_DETAIL = 500
_NICE = 10
"""Where calls keep a core busy, a worker has a tenth of it: what it is allowed in any case. The lowest priority, 19,
would leave it a seventieth, so that what is behind calls without a pause never ends."""


def take_low_priority() -> None:
    """This process, and what it starts, hardly takes from others; in a group of its own, in the same session.

    The session must stay: with autogroups the scheduler shares the cores among sessions, whatever their priorities.
    ``SCHED_BATCH`` never interrupts another process when it wakes. ``SCHED_IDLE`` would do even less: beside calls that
    keep all cores busy it does nothing for minutes, and what is behind never ends.
    """
    if os.getpgid(0) != os.getpid():
        os.setpgid(0, 0)
    os.setpriority(os.PRIO_PROCESS, 0, max(os.nice(0), _NICE))
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main(memory_bytes: int) -> None:
    """Do job after job; see the module's docstring."""
    take_low_priority()
    end_with_parent()
    limit_memory(memory_bytes)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        answers.write(json.dumps(_answer(json.loads(line))) + "\n")
        answers.flush()


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    try:
        module, _, name = job["work"].partition(":")
        result = getattr(importlib.import_module(module), name)(**job["data"])
        return {"status": "pass", "result": result}
    except MemoryError as error:
        return {"status": "out_of_memory", "detail": str(error)}
    except Exception as error:
        return {"status": "failed", "detail": f"{type(error).__name__}: {error}"[:_LONGEST_DETAIL]}


if __name__ == "__main__":
    main(int(sys.argv[1]))
