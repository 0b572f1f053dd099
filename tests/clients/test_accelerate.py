"""Accelerate: a compiled model prepared, trained, unwrapped, and its state saved and loaded.

Accelerate's own plug-in for Dynamo knows backends by a fixed list of names, so the model comes compiled.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from .held_against_eager import data, hold, hold_report, parameters_of

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")


@pytest.fixture(autouse=True)
def _first_accelerator():
    """All accelerators of a process share what the first one was told."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def _model(dtype):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.SiLU(), nn.Linear(32, 4)).to(dtype)


def _trained(wrap, dtype):
    model = _model(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(data(dtype, 16, 16), data(dtype, 16, 4, seed=2)), batch_size=4)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    ready, optimizer, loader = accelerator.prepare(wrap(model), optimizer, loader)
    losses = []
    for values, targets in loader:
        with accelerator.accumulate(ready):
            loss = nn.functional.mse_loss(ready(values), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(ready.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss)
    assert accelerator.unwrap_model(ready, keep_torch_compile=False) is model
    return [*losses, *parameters_of(model)]


def test_trains_as_eager_does(mixture):
    hold(_trained, mixture)


def test_the_state_of_a_compiled_model_is_saved_and_loaded(mixture, tmp_path):
    model = torch.compile(_model(torch.float32), backend=mixture)
    accelerator = accelerate.Accelerator(cpu=True)
    ready, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
    values = data(torch.float32, 4, 16)
    with torch.no_grad():
        before = ready(values).clone()
    accelerator.save_state(str(tmp_path))
    with torch.no_grad():
        for parameter in ready.parameters():
            parameter.mul_(2.0)
        changed = ready(values).clone()
    accelerator.load_state(str(tmp_path))
    with torch.no_grad():
        after = ready(values)
    assert not torch.allclose(before, changed)
    torch.testing.assert_close(after, before, rtol=0.0, atol=0.0)
    hold_report(mixture)


def _in_half(wrap, dtype):
    model = _model(dtype)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16" if dtype == torch.float32 else "no")
    ready = accelerator.prepare(wrap(model))
    result = ready(data(dtype, 8, 16))
    accelerator.backward(result.square().mean())
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    return [result, *(parameter.grad for parameter in model.parameters())]


def test_mixed_precision(mixture):
    hold(_in_half, mixture)
