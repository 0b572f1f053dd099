"""What a region writes without saying so is put back before eager answers; where nothing can be, the call raises."""

from __future__ import annotations

import pytest
import torch
from foreign_backends import Foreign, kinds, mixture_of
from torch import nn

from mixbackend.contracts import VerificationError
from mixbackend.execute import kept_inputs


def spoil_first(call):
    outputs = call.right()
    next(value for value in call.inputs if value.shape == (4, 8)).data.mul_(3.0)
    return outputs


def test_the_users_tensor_is_put_back(tmp_path):
    backend = Foreign(spoil_first)
    with mixture_of(backend, folder=tmp_path) as mixture:
        value = torch.randn(4, 8)
        kept = value.clone()
        result = torch.compile(lambda value: value.exp() + 1, backend=mixture)(value)
        assert torch.equal(value, kept)
        torch.testing.assert_close(result, kept.exp() + 1)
        assert kinds(mixture) == ["verify_failed", "repair"]
        assert "wrote into" in mixture.report().events[0].detail


@pytest.mark.parametrize("kind", ["nan", "transposed", "expanded", "bool"])
def test_of_any_form(tmp_path, kind):
    value = torch.randn(4, 8)
    value = {
        "nan": torch.full((4, 8), float("nan")),
        "transposed": torch.randn(8, 4).t(),
        "expanded": torch.randn(4, 1).expand(4, 8),
        "bool": value > 0,
    }[kind]

    def spoil(call):
        outputs = call.right()
        flat = call.inputs[0].data.as_strided((1,), (1,))
        flat.copy_(~flat if flat.dtype is torch.bool else torch.ones(1))
        return outputs

    def function(given):
        return given.logical_not().to(torch.float32)

    with mixture_of(Foreign(spoil), folder=tmp_path) as mixture:
        kept = value.clone()
        result = torch.compile(function, backend=mixture)(value)
        torch.testing.assert_close(value, kept, equal_nan=True, rtol=0, atol=0)
        assert torch.equal(result, function(kept))
        assert kinds(mixture)[0] == "verify_failed"


@pytest.mark.parametrize("policy", ["repair", "raise"])
def test_a_changed_weight_raises_and_the_backend_runs_no_more(tmp_path, policy):
    def spoil(call):
        outputs = call.right()
        next(value for value in call.inputs if value.shape == (8,)).data[3] += 1.0
        return outputs

    backend = Foreign(spoil)
    with mixture_of(backend, folder=tmp_path, on_failure=policy) as mixture:
        model = nn.Module()
        model.weight = nn.Parameter(torch.randn(8))
        model.forward = lambda value: value * model.weight
        compiled = torch.compile(model, backend=mixture)
        with pytest.raises(VerificationError, match=r"wrote into .*weight"):
            compiled(torch.randn(4, 8))
        if policy == "repair":
            value = torch.randn(4, 8)
            torch.testing.assert_close(compiled(value), value * model.weight)
            assert backend.calls == 1


def test_what_is_too_large_to_copy_is_known_by_its_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_inputs, "MOST_COPIED_BYTES", 64)
    with mixture_of(Foreign(spoil_first), folder=tmp_path) as mixture:
        compiled = torch.compile(lambda value: value.exp() + 1, backend=mixture)
        with pytest.raises(VerificationError, match="cannot be put back"):
            compiled(torch.randn(4, 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, torch.int64, torch.bool, torch.complex64])
def test_a_checksum_sees_every_change(dtype):
    value = (torch.randn(257, 3) * 3).to(dtype)
    before = kept_inputs.checksum(value)
    assert torch.equal(before, kept_inputs.checksum(value.clone()))
    for place in (0, 400, 770):
        changed = value.clone()
        changed.view(-1)[place] = not changed.view(-1)[place] if dtype is torch.bool else changed.view(-1)[place] + 1
        assert not torch.equal(before, kept_inputs.checksum(changed)), place
    swapped = torch.arange(771).to(dtype) if dtype is not torch.bool else torch.arange(771) < 300
    assert not torch.equal(kept_inputs.checksum(swapped), kept_inputs.checksum(swapped.flip(0)))


def test_nobody_is_blamed_for_a_buffer_that_the_graph_writes_elsewhere(tmp_path):
    """Another thread that serves the same model may advance it meanwhile."""

    class Served(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(8))

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            result = (value * self.calls).exp()
            self.calls.add_(1)
            return result

    model = Served()

    def behave(call):
        outputs = call.right()
        model.calls.data.add_(1)  # what a second thread would do
        return outputs

    with mixture_of(Foreign(behave), folder=tmp_path) as mixture:
        value = torch.randn(4, 8)
        torch.compile(model, backend=mixture)(value)
        assert kinds(mixture) == []
