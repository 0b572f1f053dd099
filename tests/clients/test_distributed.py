"""Two gloo processes, default ``auto()``: DDP, FSDP2, tensor parallel and pipeline stages are as in eager."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

WORKER = Path(__file__).with_name("distributed_worker.py")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "tensor", "pipeline"])
def test_two_processes_agree_with_eager(kind):
    port = str(_free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), kind, str(rank), port],
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
