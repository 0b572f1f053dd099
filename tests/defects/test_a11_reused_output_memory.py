"""Results that the user keeps are not overwritten by a backend that returns one buffer in every call."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from foreign_backends import Foreign, kinds, mixture_of


class Reusing:
    """Writes every result into the same memory: torch's, or that of somebody else."""

    def __init__(self, foreign_memory: bool, size: int = 32) -> None:
        self.memory = np.zeros(size, np.float32) if foreign_memory else torch.zeros(size)

    def __call__(self, call):
        (output,) = call.right()
        whole = torch.from_numpy(self.memory) if isinstance(self.memory, np.ndarray) else self.memory
        return [whole[: output.numel()].view(output.shape).copy_(output)]


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize("foreign_memory", [True, False], ids=["foreign", "torch"])
def test_one_buffer_for_all_calls(tmp_path, foreign_memory, keep):
    backend = Foreign(Reusing(foreign_memory))
    with mixture_of(backend, folder=tmp_path) as mixture:
        compiled = torch.compile(torch.exp, backend=mixture)
        values = [torch.randn(4, 8) for _ in range(5)]
        if not keep:
            for _ in range(3):
                compiled(torch.randn(4, 8))
        results = [compiled(value) for value in values]
        for value, result in zip(values, results, strict=True):
            torch.testing.assert_close(result, value.exp())
        assert kinds(mixture) == ["verify_failed", "repair"]
        assert "memory of the first one's results" in mixture.report().events[0].detail


def test_large_buffers_of_torch_are_known_without_being_kept(tmp_path):
    size = 5 << 20
    backend = Foreign(Reusing(False, size))
    with mixture_of(backend, folder=tmp_path) as mixture:
        compiled = torch.compile(torch.exp, backend=mixture)
        values = [torch.randn(size) for _ in range(2)]
        results = [compiled(value) for value in values]
        for value, result in zip(values, results, strict=True):
            torch.testing.assert_close(result, value.exp())
        assert kinds(mixture) == ["verify_failed", "repair"]


def test_new_memory_in_every_call_passes(tmp_path):
    with mixture_of(Foreign(), folder=tmp_path) as mixture:
        compiled = torch.compile(torch.exp, backend=mixture)
        for _ in range(4):
            value = torch.randn(4, 8)
            torch.testing.assert_close(compiled(value), value.exp())
        assert kinds(mixture) == []
