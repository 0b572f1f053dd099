"""A worker behind as its governor holds it: a process with everything that it starts.

Place: made by ``behind_governor``, runs ``behind_worker``. Input: jobs. Output: answers.
Invariants: no question waits for the worker; its death is an answer.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from mixbackend.backends.common.python_process import module_command
from mixbackend.host.lines_out import LinesOut
from mixbackend.host.process_tree import Usage, send, usage

_MODULE = "mixbackend.host.behind_worker"
_TAIL_BYTES = 1500


def group_of_its_own() -> dict[str, Any]:
    """Arguments of ``Popen``: a group that Ctrl-C does not reach, in the same session.

    Python 3.10 does not know them; the process sees to it by itself when it begins.
    """
    return {"process_group": 0} if sys.version_info >= (3, 11) else {}


class WorkerProcess:
    """See the module's docstring.

    Args:
        memory_bytes: that it may hold.
        compilers: how many kernels of a region it may compile at once, in processes of its own.
    """

    def __init__(self, memory_bytes: int, compilers: int) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            module_command(_MODULE, str(memory_bytes)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": str(compilers)},
            **group_of_its_own(),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._out, self._stdout = LinesOut(self._process.stdin), self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)
        self._rest = b""
        self.group = self._process.pid

    def give(self, work: str, data: Mapping[str, Any]) -> None:
        """Begin a job."""
        self._out.tell({"work": work, "data": data})

    def answer(self) -> dict[str, Any] | None:
        """What came of it, ``None`` while it goes on."""
        self._out.send()
        data = self._stdout.read()
        if data == b"":
            return self._death()
        self._rest += data or b""
        line, newline, rest = self._rest.partition(b"\n")
        if not newline:
            return None
        self._rest = rest
        answer: dict[str, Any] = json.loads(line)
        return answer

    def usage(self) -> Usage:
        """Of it and what it started."""
        return usage(self.group)

    def pause(self) -> None:
        """Use no processor until ``resume``."""
        send(self.group, signal.SIGSTOP)

    def resume(self) -> None:
        """Go on."""
        send(self.group, signal.SIGCONT)

    def end(self) -> None:
        """With everything that it started."""
        send(self.group, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._out.close()
        self._stdout.close()
        self._errors.close()

    def _death(self) -> dict[str, Any]:
        send(self.group, signal.SIGKILL)
        code = self._process.wait()
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _TAIL_BYTES))
        tail = self._errors.read().decode(errors="replace").strip()
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return {"status": "crash", "detail": f"{cause}: {tail}"}
