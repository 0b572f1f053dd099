"""Averages of compiled models, and compiled averages: stochastic weight averaging and exponential ones."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from .held_against_eager import data, hold, hold_report, hold_results, parameters_of, seeded


def _net():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def _averaged(wrap, dtype, average, of_compiled):
    """Train, average after each step, use the average: its weights change under the compiled code."""
    model = seeded(_net, dtype)
    run = wrap(model)
    averaged = average(run if of_compiled else model)
    run_averaged = averaged if of_compiled else wrap(averaged)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    results = []
    for step in range(3):
        optimizer.zero_grad()
        run(data(dtype, 8, 8, seed=step)).square().mean().backward()
        optimizer.step()
        averaged.update_parameters(model)
        averaged.eval()
        with torch.no_grad():
            results.append(run_averaged(data(dtype, 8, 8)).clone())
    update_bn([data(dtype, 8, 8, seed=9)], run_averaged if of_compiled else averaged)
    averaged.eval()
    with torch.no_grad():
        results.append(run_averaged(data(dtype, 8, 8)).clone())
    return [*results, *parameters_of(averaged)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("of_compiled", [True, False], ids=["of a compiled model", "compiled"])
@pytest.mark.parametrize("kind", ["plain", "exponential"])
def test_averages(mixture, kind, of_compiled):
    def average(model):
        rule = {"multi_avg_fn": get_ema_multi_avg_fn(0.9)} if kind == "exponential" else {}
        return AveragedModel(model, use_buffers=True, **rule)

    hold(lambda wrap, dtype: _averaged(wrap, dtype, average, of_compiled), mixture)


def test_copies_of_a_compiled_model_have_weights_of_their_own(mixture):
    model = seeded(_net, torch.float32).eval()
    run = torch.compile(model, backend=mixture)
    value = data(torch.float32, 8, 8)
    with torch.no_grad():
        before = run(value).clone()
        other = copy.deepcopy(run)
        for parameter in other.parameters():
            parameter.mul_(0.5)
        changed = other(value).clone()
        hold_results([run(value), before], [model(value)] * 2, [copy.deepcopy(model).double()(value.double())] * 2)
        plain = seeded(_net, torch.float32).eval()
        for parameter in plain.parameters():
            parameter.mul_(0.5)
        hold_results([changed], [plain(value)], [plain.double()(value.double())])
    hold_report(mixture)
