"""Processes that begin with torch and mixbackend loaded: forked from one that has done nothing else.

Loading takes two seconds, forking milliseconds. Place: where a test needs a process of its own, for a kill, a lock, a
second reader or the end of an interpreter; tests of what is loaded, and of the command line, start Python itself.
Method: started by hand, this file loads and waits. For each program it forks a keeper, which forks the process and
tells its number and, later, how it ended. The loaded process has one thread, so whatever the program does is as in a
process that loaded by itself; only variables that libraries read while they load are those of ``WarmProcesses``.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import IO

LOADED = ("torch", "mixbackend", "mixbackend.storage", "mixbackend.backends.eager")
LONGEST_S = 240.0


class WarmProcess:
    """A process that runs a program; as far as tests use it, a ``subprocess.Popen``."""

    def __init__(self, keeper: socket.socket, stdout: IO[str], stderr: IO[str]) -> None:
        self.stdout, self.stderr = stdout, stderr
        self.returncode: int | None = None
        self._keeper, self._told = keeper, b""
        number = self._line(LONGEST_S)
        assert number is not None, "nothing could be started"
        self.pid = number

    def poll(self) -> int | None:
        """How it ended, if it did."""
        if self.returncode is None:
            self.returncode = self._line(0.0)
        return self.returncode

    def wait(self, timeout: float = LONGEST_S) -> int:
        """How it ended, as ``subprocess`` tells it."""
        if self.returncode is None:
            self.returncode = self._line(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """All that it writes, and its end."""
        with self.stdout, self.stderr:
            written = self.stdout.read(), self.stderr.read()
        self.wait()
        return written

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _line(self, timeout: float) -> int | None:
        """The next number that the keeper tells; none if it says nothing for so long."""
        while b"\n" not in self._told:
            if not select.select([self._keeper], [], [], timeout)[0]:
                return None
            more = self._keeper.recv(100)
            assert more, "the keeper of a process ended"
            self._told += more
        line, _, self._told = self._told.partition(b"\n")
        return int(line)


class WarmProcesses:
    """Starts them; loaded by the first one, ended by ``close``.

    Args:
        environment: what libraries find while they load; by default this process's.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment
        self._loaded: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="warm")
        self._address = str(Path(self._folder.name) / "socket")

    def start(
        self, program: str, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> WarmProcess:
        """Begin a program: Python text, which sees ``arguments`` as those of a command."""
        if self._loaded is None:
            with socket.socket(socket.AF_UNIX) as door:
                door.bind(self._address)
                door.listen(64)
                command = [sys.executable, __file__, str(door.fileno())]
                given = dict(os.environ if self._environment is None else self._environment)
                given["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
                self._loaded = subprocess.Popen(command, env=given, pass_fds=[door.fileno()], stdin=subprocess.PIPE)
        keeper = socket.socket(socket.AF_UNIX)
        keeper.connect(self._address)
        mine, theirs = zip(os.pipe(), os.pipe(), strict=True)
        asked = [program, ["-c", *arguments], dict(os.environ if env is None else env), str(cwd or Path.cwd())]
        socket.send_fds(keeper, [b"\0"], theirs)
        with keeper.makefile("w") as writer:
            writer.write(json.dumps(asked) + "\n")
        for end in theirs:
            os.close(end)
        return WarmProcess(keeper, *(os.fdopen(end) for end in mine))

    def run(
        self, program: str, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        process = self.start(program, *arguments, env=env, cwd=cwd)
        written = process.communicate()
        return subprocess.CompletedProcess(["-c", *arguments], process.wait(), *written)

    def close(self) -> None:
        """Start none any more."""
        if self._loaded is not None:
            self._loaded.communicate()
        self._folder.cleanup()


def main() -> None:
    """Load, and fork a keeper for each program, until nobody is there to ask any more."""
    for name in LOADED:
        __import__(name)
    door = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers leave nothing behind
    while sys.stdin not in select.select([door, sys.stdin], [], [])[0]:
        caller, _ = door.accept()
        if os.fork() == 0:
            door.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _keep(caller)
            return
        caller.close()


def _keep(caller: socket.socket) -> None:
    """Fork the process, and tell of it; returns in the process itself, which ends as its program does."""
    _, outputs, *_ = socket.recv_fds(caller, 1, 2)
    program, arguments, environment, folder = json.loads(caller.makefile().readline())
    child = os.fork()
    if child != 0:
        for output in outputs:
            os.close(output)
        caller.sendall(f"{child}\n".encode())
        caller.sendall(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())
        os._exit(0)
    caller.close()
    for place, used in enumerate((os.open(os.devnull, os.O_RDONLY), *outputs)):
        os.dup2(used, place, inheritable=True)
        os.close(used)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = arguments
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(program, "<program>", "exec"), vars(module))


if __name__ == "__main__":
    main()
