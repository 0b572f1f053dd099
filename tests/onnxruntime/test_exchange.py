"""Tensors in and out: no copies, nothing shared by accident, weights always seen."""

from __future__ import annotations

import itertools
import threading

import pytest
import torch


def _linear(x, weight, bias):
    return torch.relu(torch.nn.functional.linear(x, weight, bias))


@pytest.fixture
def linear(workbench):
    torch.manual_seed(0)
    inputs = [torch.randn(4, 8), torch.nn.Parameter(torch.randn(6, 8)), torch.nn.Parameter(torch.randn(6))]
    return workbench.build(_linear, inputs, weights=(1, 2)), inputs


def _agrees(built, inputs):
    with torch.no_grad():
        torch.testing.assert_close(built(*inputs)[0], _linear(*inputs))


def test_parameters_are_taken_as_they_are(linear):
    built, inputs = linear
    _agrees(built, inputs)
    assert not built(*inputs)[0].requires_grad


def test_weight_updates_are_seen(linear):
    built, inputs = linear
    _agrees(built, inputs)
    weight, bias = inputs[1], inputs[2]
    with torch.no_grad():
        weight.mul_(2)
    _agrees(built, inputs)
    weight.data.add_(1)
    _agrees(built, inputs)
    bias.data = torch.randn(6)
    _agrees(built, inputs)
    inputs[1] = torch.nn.Parameter(torch.randn(6, 8))
    _agrees(built, inputs)
    weight.grad = torch.ones_like(weight)
    inputs[1] = weight
    torch.optim.SGD([weight], 0.1, fused=True).step()
    _agrees(built, inputs)


def test_weights_with_gaps_are_seen(workbench):
    """A weight that must be copied is copied at every call."""
    weight = torch.nn.Parameter(torch.randn(8, 6).t())
    inputs = [torch.randn(4, 8), weight, torch.randn(6)]
    built = workbench.build(_linear, inputs, weights=(1, 2))
    _agrees(built, inputs)
    with torch.no_grad():
        weight.add_(1)
    _agrees(built, inputs)


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(8, 4).t(),
        torch.randn(4, 16)[:, ::2],
        torch.randn(8).expand(4, 8),
        torch.randn(100)[7:39].view(4, 8),
        torch.randn(2, 4, 8)[1],
    ],
)
def test_any_strides(linear, value):
    built, inputs = linear
    _agrees(built, [value, *inputs[1:]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool])
def test_no_copies(workbench, dtype):
    """A view of the same storage goes in, and results are read where the runtime wrote them."""
    from mixbackend.backends.onnxruntime.exchange import exchange_tensor

    tensor = torch.ones(3, 4).to(dtype)
    assert exchange_tensor(tensor).data_ptr() == tensor.data_ptr()
    workbench.check(lambda x: torch.stack([x, x]), tensor)


def test_scalars_and_single_elements(workbench):
    workbench.check(lambda x, y: (x + y, x.reshape(1), x > y), torch.tensor(1.5), torch.tensor(2.5))


def test_results_are_fresh(workbench):
    """No result shares storage with an input, with another result, or with the results of another call."""

    def function(x, y):
        z = x * y
        return z, z.reshape(-1), x.reshape(-1), z.t(), x.clone(), z.clone()

    inputs = [torch.randn(4, 6), torch.randn(4, 6)]
    built = workbench.build(function, inputs)
    tensors = [*inputs, *built.compiled.run(inputs), *built.compiled.run(inputs)]
    spans = sorted((item.untyped_storage().data_ptr(), item.untyped_storage().nbytes()) for item in tensors)
    assert all(first + size <= second for (first, size), (second, _) in itertools.pairwise(spans))
    results = built.compiled.run(inputs)
    kept = [item.clone() for item in results]
    built.compiled.run([torch.zeros(4, 6), torch.zeros(4, 6)])
    assert all(torch.equal(item, copy) for item, copy in zip(results, kept, strict=True))
    results[0].add_(1)
    assert torch.equal(inputs[0] * inputs[1], built(*inputs)[0])


def test_inputs_are_not_changed(linear):
    built, inputs = linear
    before = [item.detach().clone() for item in inputs]
    built(*inputs)
    assert all(torch.equal(item, copy) for item, copy in zip(inputs, before, strict=True))


def test_results_outlive_the_session(workbench):
    built = workbench.build(lambda x: x * 2 + 1, [torch.ones(1000)])
    results = [built(torch.full((1000,), float(number)))[0] for number in range(20)]
    del built
    assert all(item.eq(2 * number + 1).all() for number, item in enumerate(results))


def test_threads_may_call_at_once(linear):
    built, inputs = linear
    wrong: list[int] = []

    def work(seed: int) -> None:
        weight = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed))
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
        expected = _linear(x, weight, inputs[2].detach())
        if not all(torch.allclose(built(x, weight, inputs[2])[0], expected, atol=1e-5) for _ in range(100)):
            wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_public_way_into_a_session_agrees(workbench):
    """The fallback for releases whose session object has no direct entry."""
    import onnx

    from mixbackend.backends.onnxruntime import session
    from mixbackend.backends.onnxruntime.boundary import boundary

    built = workbench.build(lambda x: (x + 1, x > 0), [torch.randn(3)])

    class Public:
        def __init__(self, inner):
            self.run_with_ort_values = inner.run_with_ort_values

    direct = session.open_session(built.compiled.artifact, static=True, doubles=False)
    entrances, exits = boundary(built.region, onnx.load_model_from_string(built.compiled.artifact))
    run = session.runner(Public(direct), entrances, exits)
    value = torch.tensor([-1.0, 0.0, 2.0])
    results = run([value])
    assert torch.equal(results[0], value + 1)
    assert torch.equal(results[1], value > 0)
