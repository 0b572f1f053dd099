"""Weights moved into a file: the same tensors, out of memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mixbackend.execute.weights import file_backed
from mixbackend.execute.weights.file_backed import FileBackedWeights

MEMORY = """
from pathlib import Path
import torch
from mixbackend.execute.weights.file_backed import FileBackedWeights

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

FileBackedWeights([torch.ones(1 << 10)]).release()  # what the first use loads is not counted
weights = [torch.ones(1 << 22) for _ in range(4)]
full = resident_bytes()
held = FileBackedWeights(weights)
assert held.bytes == 4 << 24
assert full - resident_bytes() > 3 << 24
assert sum(float(weight.sum()) for weight in weights) == 4 << 22
assert full - resident_bytes() < 1 << 24
held.release()
assert full - resident_bytes() > 3 << 24
assert float(weights[2][-1]) == 1.0
"""


def test_values_strides_and_sharing_stay() -> None:
    base = torch.randn(40, 30)
    weights = [
        nn.Parameter(base),
        base[3:, ::2],
        base.t(),
        torch.randn(8, 5).to(torch.bfloat16),
        torch.tensor([True, False, True]),
        torch.empty(0, 4),
        torch.tensor(3, dtype=torch.int16),
    ]
    before = [weight.detach().clone() for weight in weights]
    strides = [weight.stride() for weight in weights]
    FileBackedWeights(weights).release()
    assert all(torch.equal(mine, old) for mine, old in zip(weights, before, strict=True))
    assert [weight.stride() for weight in weights] == strides
    with torch.no_grad():
        weights[0].mul_(2)
    assert torch.equal(weights[1], before[1] * 2) and torch.equal(weights[2], before[2] * 2)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_given_back() -> None:
    """In a process of its own, where nobody else allocates."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_room_moves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(file_backed, "private_cache_folder", lambda name: tmp_path / "missing")
    weight = torch.ones(4)
    address = weight.data_ptr()
    with pytest.raises(OSError):
        FileBackedWeights([weight])
    assert weight.data_ptr() == address


def test_nothing_to_move() -> None:
    held = FileBackedWeights([torch.empty(0)])
    held.release()
    assert held.bytes == 0
