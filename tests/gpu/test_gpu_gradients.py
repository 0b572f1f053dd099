"""Gradients that come out of the memory of CUDA graphs: eager's, whoever keeps them, and not copied if nobody does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.gpu


def _pair(gpu, mixture, breaks=False):
    """A model, its compiled self, and the same in eager."""

    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128))
            self.second = nn.Sequential(nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 8))

        def forward(self, value):
            value = self.first(value)
            if breaks:
                torch._dynamo.graph_break()
            return self.second(value).square().mean()

    model = Layers().to(gpu)
    backend = mixture()
    return model, torch.compile(model, backend=backend, mode="reduce-overhead"), copy.deepcopy(model), backend


def _values(gpu, count):
    return [torch.randn(32, 64, device=gpu) for _ in range(count)]


def _same(model, eager):
    for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=2e-3, atol=1e-5)


def _warm(model, step, gpu, count=12):
    for value in _values(gpu, count):
        step(value).backward()
        model.zero_grad(set_to_none=True)


@pytest.mark.parametrize("breaks", [False, True])
def test_no_gradient_is_copied_after_some_steps(gpu, mixture, copies, breaks):
    model, step, eager, backend = _pair(gpu, mixture, breaks)
    _warm(model, step, gpu, 20)
    copies.clear()
    for value in _values(gpu, 4):
        step(value).backward()
        eager(value).backward()
        _same(model, eager)
        model.zero_grad(set_to_none=True)
        eager.zero_grad(set_to_none=True)
    assert sum(copies) == 0
    assert not [event for event in backend.report().events if "kept into the next call" in event.detail]


@pytest.mark.parametrize("warm", [0, 12])
@pytest.mark.parametrize("breaks", [False, True])
def test_accumulated_over_four_steps_they_are_eagers(gpu, mixture, warm, breaks):
    model, step, eager, _ = _pair(gpu, mixture, breaks)
    _warm(model, step, gpu, warm)
    for _ in range(4):
        for value in _values(gpu, 4):
            step(value).backward()
            eager(value).backward()
        _same(model, eager)
        model.zero_grad(set_to_none=True)
        eager.zero_grad(set_to_none=True)


def test_gradients_that_are_kept_from_the_fifth_step_on_stay_what_they_were(gpu, mixture):
    model, step, eager, _ = _pair(gpu, mixture)
    kept, expected = [], []
    for number, value in enumerate(_values(gpu, 14)):
        step(value).backward()
        eager(value).backward()
        if number >= 5:
            kept.append([parameter.grad for parameter in model.parameters()])
            expected.append([parameter.grad.clone() for parameter in eager.parameters()])
        model.zero_grad(set_to_none=True)
        eager.zero_grad(set_to_none=True)
    for mine, theirs in zip(kept, expected, strict=True):
        for result, right in zip(mine, theirs, strict=True):
            torch.testing.assert_close(result, right, rtol=2e-3, atol=1e-5)


def test_kept_late_they_are_seen_and_copied_from_then_on(gpu, mixture):
    model, step, eager, backend = _pair(gpu, mixture)
    _warm(model, step, gpu)
    for value in _values(gpu, 4):
        step(value).backward()
        eager(value).backward()
    _same(model, eager)
    assert [event for event in backend.report().events if "kept into the next call" in event.detail]


def test_results_of_autograd_grad_are_the_callers(gpu, mixture):
    model, step, eager, _ = _pair(gpu, mixture)
    _warm(model, step, gpu)
    values = _values(gpu, 4)
    mine = [torch.autograd.grad(step(value), [*model.parameters()]) for value in values]
    for value, results in zip(values, mine, strict=True):
        for result, right in zip(results, torch.autograd.grad(eager(value), [*eager.parameters()]), strict=True):
            torch.testing.assert_close(result, right, rtol=2e-3, atol=1e-5)


def test_two_models_in_turns(gpu, mixture):
    pairs = [_pair(gpu, mixture) for _ in range(2)]
    for value in _values(gpu, 14):
        for _, step, eager, _ in pairs:
            step(value).backward()
            eager(value).backward()
        for model, _, eager, _ in pairs:
            _same(model, eager)
            model.zero_grad(set_to_none=True)
            eager.zero_grad(set_to_none=True)


def test_inference_while_gradients_are_held(gpu, mixture):
    model, step, eager, _ = _pair(gpu, mixture)
    _, other, other_eager, _ = _pair(gpu, mixture)
    with torch.no_grad():
        for value in _values(gpu, 4):
            other(value)
    _warm(model, step, gpu)
    for value in _values(gpu, 4):
        step(value).backward()
        eager(value).backward()
        with torch.no_grad():
            torch.testing.assert_close(other(value), other_eager(value), rtol=2e-3, atol=1e-5)
        _same(model, eager)
        model.zero_grad(set_to_none=True)
        eager.zero_grad(set_to_none=True)


def test_amp_with_a_scaler_trains_as_eager_does(gpu, mixture, copies):
    model, step, eager, _ = _pair(gpu, mixture)
    values, losses = _values(gpu, 20), []
    for module, run in ((model, step), (eager, eager)):
        optimizer, scaler = torch.optim.SGD(module.parameters(), lr=1e-2, foreach=True), torch.amp.GradScaler("cuda")
        for value in values:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = run(value)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss))
    assert losses[0] == pytest.approx(losses[1], rel=5e-2)
    assert len(copies) < len(values)


def test_gradients_outlive_what_was_compiled(gpu, mixture):
    model, step, eager, _ = _pair(gpu, mixture)
    _warm(model, step, gpu)
    (value,) = _values(gpu, 1)
    step(value).backward()
    eager(value).backward()
    del step
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    filler = [torch.full((1 << 20,), 7.0, device=gpu) for _ in range(16)]
    _same(model, eager)
    del filler


def _same_steps(gpu, model, run, eager, steps=16):
    """Gradients of a loss that both are given, step by step."""
    for value in _values(gpu, steps):
        for module in (model, eager):
            module.zero_grad(set_to_none=True)
        run[0](value)
        run[1](value)
        _same(model, eager)


def test_a_model_that_is_called_twice_before_its_backward(gpu, mixture):
    """Torch's engine adds up the gradients of both calls: it alone holds the first's while the second's are made."""
    model, step, eager, _ = _pair(gpu, mixture)
    other = torch.randn(32, 64, device=gpu)
    losses = [lambda value, call=call: (call(value) + 3 * call(value + other)).backward() for call in (step, eager)]
    _same_steps(gpu, model, losses, eager)


def test_a_weight_that_is_used_on_both_sides_of_a_break(gpu, mixture):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(50, 64)
            self.layer = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))

        def forward(self, tokens):
            value = self.embedding(tokens)
            torch._dynamo.graph_break()
            value = self.layer(value)
            torch._dynamo.graph_break()
            return nn.functional.linear(value, self.embedding.weight).square().mean()

    model = Tied().to(gpu)
    eager, step = copy.deepcopy(model), torch.compile(model, backend=mixture(), mode="reduce-overhead")
    for _ in range(16):
        tokens = torch.randint(50, (8, 32), device=gpu)
        for module, call in ((model, step), (eager, eager)):
            module.zero_grad(set_to_none=True)
            call(tokens).backward()
        _same(model, eager)


@pytest.mark.parametrize("between", [False, True])
def test_a_backward_that_is_run_again(gpu, mixture, monkeypatch, between):
    monkeypatch.setattr(torch._functorch.config, "donated_buffer", False)
    model, step, eager, _ = _pair(gpu, mixture, breaks=True)

    def losses(call):
        def run(value, again):
            loss = call(value)
            loss.backward(retain_graph=again)
            if again:
                if between:
                    call(value + 1).backward()
                loss.backward()

        return run

    runs = [losses(step), losses(eager)]
    for number in range(3):
        for again in (False, True):
            _same_steps(
                gpu, model, [lambda value, run=run, again=again: run(value, again) for run in runs], eager, 8 - number
            )
