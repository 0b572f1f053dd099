"""Triton's interpreter is chosen before Triton is imported, so a process of its own answers what tests ask of it.

Started by hand, this file is that process: a question a line, as JSON a module beside this file and what its ``answer``
takes; an answer a line. Questions are answered as they come, so nothing is computed that no test asks for.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


class Answers:
    """The process; started by the first question, ended by ``close``."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, module: str, *given: Any) -> dict[str, Any]:
        """What ``answer`` of a module says; an exception there is a failure here."""
        if self._process is None:
            command = [sys.executable, "-W", "ignore", __file__]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None and answers is not None
        questions.write(json.dumps([module, *given]) + "\n")
        questions.flush()
        line = answers.readline()
        assert line, f"the interpreter's process ended: {self._process.wait()}"
        found: dict[str, Any] = json.loads(line)
        assert "error" not in found, found["error"]
        return found

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def main() -> None:
    """Answer until there are no more questions."""
    os.environ["TRITON_INTERPRET"] = "1"
    sys.path.insert(0, str(Path(__file__).parent))
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        module, *given = json.loads(line)
        try:
            found = importlib.import_module(module).answer(*given)
        except Exception as error:  # reported as the answer
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
