"""Two processes of one job on this machine, as ``torch.distributed`` wants them."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path


def hold_equal_to_eager(worker: Path, kind: str, *more: str) -> None:
    """Run a script as rank 0 and rank 1; both are to say ``equal to eager`` and to end well.

    Args:
        worker: takes kind, rank, a free port of this machine, and ``more``.
    """
    port = str(_free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, str(worker), kind, str(rank), port, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
        assert "equal to eager" in output


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
