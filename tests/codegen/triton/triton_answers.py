"""Programs under Triton's interpreter, which is chosen before the import: each runs in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def answers_of(program: str, *options: str, timeout_s: float = 250) -> list[dict[str, Any]]:
    """What a program beside this file answers, one JSON object a line."""
    command = [sys.executable, "-W", "ignore", str(Path(__file__).parent / program), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
