"""A region that may have written an input when it raises is not run a second time by eager: the call raises, and names
the input."""

from __future__ import annotations

import pytest
import torch
from foreign_backends import Foreign, kinds, mixture_of, owners
from torch import nn

from mixbackend.contracts import RegionRunError


class Counter(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(0.0))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return value.exp() + self.calls


class Breaking:
    """Raises when it is told to, after it has written or before."""

    def __init__(self, after_writing: bool) -> None:
        self.broken = False
        self.after_writing = after_writing

    def __call__(self, call):
        if self.broken and not self.after_writing:
            raise RuntimeError("device lost")
        outputs = call.right()
        if self.broken:
            raise RuntimeError("device lost")
        return outputs


def test_a_later_call_raises_and_names_the_buffer(tmp_path):
    behave = Breaking(after_writing=True)
    with mixture_of(Foreign(behave, writes_inputs=True), folder=tmp_path) as mixture:
        model = Counter()
        compiled = torch.compile(model, backend=mixture)
        value = torch.randn(4)
        for _ in range(3):
            compiled(value)
        behave.broken = True
        with pytest.raises(RegionRunError, match=r"writes into .*calls.*device lost"):
            compiled(value)
        assert model.calls == 4, "written once, and not by eager once more"
        torch.testing.assert_close(compiled(value), value.exp() + 5)
        assert model.calls == 5
        assert kinds(mixture) == ["quarantine", "repair"]
        assert owners(mixture) == {"eager"}


def test_who_promises_to_raise_before_writing_is_answered_by_eager(tmp_path):
    behave = Breaking(after_writing=False)
    backend = Foreign(behave, writes_inputs=True, raises_before_writing=True)
    with mixture_of(backend, folder=tmp_path) as mixture:
        model = Counter()
        compiled = torch.compile(model, backend=mixture)
        value = torch.randn(4)
        for call in range(1, 6):
            behave.broken = call > 3
            torch.testing.assert_close(compiled(value), value.exp() + call)
            assert model.calls == call
        assert kinds(mixture) == ["quarantine", "repair"]


def test_in_a_checked_call_the_buffer_is_put_back(tmp_path):
    behave = Breaking(after_writing=True)
    behave.broken = True
    with mixture_of(Foreign(behave, writes_inputs=True), folder=tmp_path) as mixture:
        model = Counter()
        compiled = torch.compile(model, backend=mixture)
        value = torch.randn(4)
        torch.testing.assert_close(compiled(value), value.exp() + 1)
        assert model.calls == 1
