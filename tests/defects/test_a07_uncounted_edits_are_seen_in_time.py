"""An edit of a part of a weight that torch does not count is seen after a time of use, whatever calls take."""

from __future__ import annotations

import time

import pytest
import torch

import mixbackend
from mixbackend.execute.weights.watch import SHARE, WeightWatch


@pytest.mark.parametrize("edit", ["data", "numpy", "dlpack"])
def test_a_few_slow_calls_see_the_edit(edit: str) -> None:
    """Two thousand pieces and more would have taken as many calls; a few hundredths of a second each are enough."""
    weight = torch.randn(1500, 1500)
    watch = WeightWatch([weight])
    arguments = [weight]
    assert watch.unchanged(arguments)
    if edit == "data":
        weight.data[3, 777] += 5
    elif edit == "numpy":
        weight.numpy()[3, 777] += 5
    else:
        torch.from_dlpack(weight.__dlpack__())[3, 777] += 5
    if edit == "dlpack" and not watch.unchanged(arguments):
        return
    begin, calls = time.monotonic(), 0
    while watch.unchanged(arguments):
        time.sleep(0.03)
        calls += 1
        assert time.monotonic() - begin < 5, "about 0.1 s on a machine that reads 10 GB a second"
    assert calls < 100
    assert "content" in watch.change()


@pytest.mark.alone
def test_looking_takes_a_hundredth_of_the_time_at_most() -> None:
    weights = [torch.randn(2000, 2000) for _ in range(4)]
    watch = WeightWatch(weights)
    begin, spent = time.perf_counter(), 0.0
    for _ in range(200):
        time.sleep(0.005)
        before = time.thread_time()
        assert watch.unchanged(weights)
        spent += time.thread_time() - before
    # Beside it, a few places of each tensor are compared in every call.
    assert spent < 2 * SHARE * (time.perf_counter() - begin)


def test_a_model_uses_the_edited_weight() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1200, 1200), torch.nn.ReLU()).requires_grad_(False)
    run = torch.compile(model, backend=mixbackend.auto({"backends": ["codegen", "eager"]}))
    x = torch.randn(4, 1200)
    run(x)
    model[0].weight.data[3, 777] += 50
    begin = time.monotonic()
    while not torch.allclose(run(x), model(x), atol=1e-3):
        assert time.monotonic() - begin < 10


def test_invalidate_says_it_at_once() -> None:
    model = torch.nn.Linear(2000, 2000).requires_grad_(False)
    run = torch.compile(model, backend=mixbackend.auto({"backends": ["codegen", "eager"]}))
    x = torch.randn(4, 2000)
    run(x)
    model.weight.data[3, 777] += 50
    mixbackend.invalidate(run)
    torch.testing.assert_close(run(x), model(x), rtol=1e-3, atol=1e-3)


def test_invalidate_says_what_it_wants() -> None:
    with pytest.raises(mixbackend.MixbackendError, match=r"torch\.nn\.Module"):
        mixbackend.invalidate(torch.ones(3))  # type: ignore[arg-type]
