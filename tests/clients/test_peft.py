"""PEFT: adapters of a compiled model are switched, merged, taken out again, disabled and trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .held_against_eager import data, hold, parameters_of

peft = pytest.importorskip("peft", reason="peft is not installed")


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.second(nn.functional.gelu(self.first(value)))


def _adapted(dtype):
    """A model with two adapters, whose weights are no zeros."""
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, target_modules=["first", "second"], init_lora_weights=False)
    model = peft.get_peft_model(_Net(), config, adapter_name="one")
    model.add_adapter("two", config)
    return model.to(dtype)


def _used(wrap, dtype):
    model = _adapted(dtype).eval()
    run = wrap(model)
    value = data(dtype, 4, 16)
    results = []
    with torch.no_grad():
        for adapter in ("one", "two", "one"):
            model.set_adapter(adapter)
            results.append(run(value).clone())
        model.merge_adapter()
        results.append(run(value).clone())
        model.unmerge_adapter()
        results.append(run(value).clone())
        with model.disable_adapter():
            results.append(run(value).clone())
        results.append(run(value).clone())
        model.add_weighted_adapter(["one", "two"], [0.5, 2.0], "both", combination_type="linear")
        model.set_adapter("both")
        results.append(run(value).clone())
    return results


def _trained(wrap, dtype):
    model = _adapted(dtype).train()
    run = wrap(model)
    optimizer = torch.optim.SGD([item for item in model.parameters() if item.requires_grad], lr=0.05)
    results = []
    for step in range(3):
        optimizer.zero_grad()
        loss = run(data(dtype, 4, 16, seed=step)).square().mean()
        loss.backward()
        optimizer.step()
        results.append(loss)
    model.eval()
    with torch.no_grad():
        results.append(run(data(dtype, 4, 16)).clone())
        merged = model.merge_and_unload()
        results.append(merged(data(dtype, 4, 16)))
    return [*results, *parameters_of(model)]


def test_switched_merged_and_disabled(mixture):
    hold(_used, mixture)


def test_adapters_differ():
    one, two, *_ = _used(lambda model: model, torch.float32)
    assert not torch.allclose(one, two)


def test_trained(mixture):
    hold(_trained, mixture)
