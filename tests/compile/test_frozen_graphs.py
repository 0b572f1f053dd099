"""Graphs with constants: when they are bound, bound again, shared, given up."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch import nn

import mixbackend
from mixbackend.compile import weight_bindings


class Net(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.last = nn.Linear(width * 16, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, value):
        scale = torch.arange(4, device=value.device).to(value.dtype).add(1).rsqrt()
        return self.last(self.norm(self.first(value)).relu().flatten(1)) * scale


def make_net(width: int = 6) -> Net:
    net = Net(width).eval()
    nn.init.uniform_(net.norm.running_mean, -1, 1)
    nn.init.uniform_(net.norm.running_var, 0.5, 2)
    return net


VALUE = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def check(compiled, model, value=VALUE):
    with torch.no_grad():
        torch.testing.assert_close(compiled(value), model(value), rtol=1e-5, atol=1e-5)


def kinds(mixture):
    return [event.kind for event in mixture.report().events]


def test_constants_are_bound_once_and_normalisation_is_folded(make_mixture, packer):
    model, mixture = make_net(), make_mixture(packer)
    compiled = torch.compile(model, backend=mixture)
    for _ in range(5):
        check(compiled, model)
    assert packer.binds == len(packer.compiled) > 0
    ops = {op for graph in mixture.report().to_dict()["graphs"] for region in graph["regions"] for op in region["ops"]}
    assert not any("batch_norm" in op or "rsqrt" in op or "arange" in op for op in ops), ops


def test_live_weights_are_never_bound(make_mixture, packer):
    model = make_net()
    check(torch.compile(model, backend=make_mixture(packer, weights="live")), model)
    assert packer.binds == 0


def test_training_graphs_are_never_bound(make_mixture, packer):
    model = make_net()
    torch.compile(model, backend=make_mixture(packer))(VALUE).sum().backward()
    assert packer.binds == 0 and model.first.weight.grad is not None


def test_inference_mode(make_mixture, packer):
    model = make_net()
    compiled = torch.compile(model, backend=make_mixture(packer))
    with torch.inference_mode():
        torch.testing.assert_close(compiled(VALUE), model(VALUE), rtol=1e-5, atol=1e-5)
    check(compiled, model)


def test_weights_made_in_inference_mode(make_mixture, packer):
    with torch.inference_mode():
        model = make_net()
        compiled = torch.compile(model, backend=make_mixture(packer))
        before = compiled(VALUE).clone()
        model.first.weight.mul_(3)
        torch.testing.assert_close(compiled(VALUE), model(VALUE), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(before, compiled(VALUE))


def test_dynamic_batch(make_mixture, packer):
    model = make_net()
    compiled = torch.compile(model, backend=make_mixture(packer), dynamic=True)
    for batch in (2, 5, 9):
        check(compiled, model, torch.randn(batch, 3, 6, 6))
    assert packer.binds == len(packer.compiled)


def test_layers_that_share_a_graph_have_constants_of_their_own(make_mixture, packer):
    mixture = make_mixture(packer)
    layers = [nn.Linear(8, 8) for _ in range(4)]
    compiled = [torch.compile(layer, backend=mixture) for layer in layers]
    value = torch.randn(3, 8)
    with torch.no_grad():
        for _ in range(3):
            for layer, fast in zip(layers, compiled, strict=True):
                torch.testing.assert_close(fast(value), layer(value))
    assert packer.binds == 4


def test_more_tuples_than_slots_means_live_weights(make_mixture, packer, monkeypatch):
    monkeypatch.setattr(weight_bindings, "MOST_TUPLES", 2)
    mixture = make_mixture(packer)
    layers = [nn.Linear(8, 8) for _ in range(4)]
    value = torch.randn(3, 8)
    with torch.no_grad():
        for layer in layers:
            torch.testing.assert_close(torch.compile(layer, backend=mixture)(value), layer(value))
    assert packer.binds == 2 and "fallback" in kinds(mixture)


def test_weights_that_change_all_the_time_become_live(make_mixture, packer):
    packer.bind_s = 0.05
    model, mixture = make_net(), make_mixture(packer)
    compiled = torch.compile(model, backend=mixture)
    for _ in range(40):
        with torch.no_grad():
            model.last.weight.add_(0.1)
        check(compiled, model)
    assert packer.binds < 40 * len(packer.compiled)
    assert {"weights_rebuilt", "fallback"} <= set(kinds(mixture))


def test_dead_models_are_forgotten(make_mixture, packer):
    mixture = make_mixture(packer)
    value = torch.randn(3, 8)

    def use_one():
        layer = nn.Linear(8, 8)
        with torch.no_grad():
            torch.testing.assert_close(torch.compile(layer, backend=mixture)(value), layer(value))

    for _ in range(5):
        use_one()
        gc.collect()
    assert "fallback" not in kinds(mixture)


def test_an_optimizer_of_another_model_disturbs_nobody(make_mixture, packer):
    model, other = make_net(), nn.Linear(2, 2)
    compiled = torch.compile(model, backend=make_mixture(packer))
    check(compiled, model)
    binds = packer.binds
    other(torch.randn(3, 2)).sum().backward()
    torch.optim.SGD(other.parameters(), lr=0.1, fused=True).step()
    check(compiled, model)
    assert packer.binds == binds


def test_buffers_that_the_graph_writes_stay_inputs(make_mixture, packer):
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(4))
            self.register_buffer("scale", torch.full((4,), 2.0))

        def forward(self, value):
            self.total.add_(value.sum(0))
            return value * self.total * self.scale

    model, twin = Counter(), Counter()
    compiled = torch.compile(model, backend=make_mixture(packer))
    value = torch.randn(3, 4)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(value), twin(value))
    torch.testing.assert_close(model.total, twin.total)


def test_returned_constants_are_fresh_at_every_call(make_mixture, packer):
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(4))

        def forward(self, value):
            return value + self.table, self.table * 2

    model = Table()
    compiled = torch.compile(model, backend=make_mixture(packer))
    with torch.no_grad():
        _, double = compiled(torch.zeros(4))
        double.zero_()
        torch.testing.assert_close(compiled(torch.zeros(4))[1], model.table * 2)


def test_a_region_that_cannot_be_bound_goes_elsewhere(make_mixture, packer):
    model = make_net()
    packer.bind_error = RuntimeError("no room")
    mixture = make_mixture(packer, on_failure="repair")
    check(torch.compile(model, backend=mixture), model)
    assert "quarantine" in kinds(mixture)


def test_two_models_in_two_threads(make_mixture, packer):
    mixture = make_mixture(packer)
    models = [make_net(6), make_net(7)]
    compiled = [torch.compile(model, backend=mixture) for model in models]
    for fast, model in zip(compiled, models, strict=True):
        check(fast, model)
    problems: list[BaseException] = []

    def work(index: int) -> None:
        try:
            for step in range(30):
                if step % 10 == 9:
                    models[index].last.bias.data.add_(1)
                check(compiled[index], models[index])
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


@pytest.mark.parametrize("edit", ["one element of a large weight", "told at once"])
def test_edits_that_torch_does_not_tell(make_mixture, packer, edit):
    import mixbackend

    model = nn.Linear(64, 64)
    compiled = torch.compile(model, backend=make_mixture(packer))
    value = torch.randn(3, 64)
    with torch.no_grad():
        compiled(value)
        model.weight.data[17, 5] += 100.0
        if edit == "told at once":
            mixbackend.invalidate(model)
            torch.testing.assert_close(compiled(value), model(value))
            return
        calls = next(call for call in range(100) if torch.allclose(compiled(value), model(value), atol=1e-4))
    assert calls <= 64 * 64 * 4 // 4096 + 1


def test_frozen_weights_are_right_and_counted_writes_are_still_seen(make_mixture, packer):
    model = make_net()
    twin = make_net()
    twin.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend=make_mixture(packer, weights="frozen"))
    check(compiled, twin)
    for mine, other in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        assert torch.equal(mine, other)
    with torch.no_grad():
        for net in (model, twin):
            net.last.weight.mul_(2)
    check(compiled, twin)
    model.train()(VALUE).sum().backward()
    assert model.first.weight.grad is not None


def test_parts_of_tensor_subclasses_are_constants(make_mixture, packer):
    """Quantised weights are tensor subclasses, which torch takes apart."""
    from torch.testing._internal.two_tensor import TwoTensor

    model = nn.Linear(8, 4, bias=False).eval()
    model.weight = nn.Parameter(TwoTensor(torch.randn(4, 8), torch.randn(4, 8)), requires_grad=False)
    mixture = make_mixture(packer)
    compiled, value = torch.compile(model, backend=mixture), torch.randn(3, 8)

    def check_parts():
        with torch.no_grad():
            mine, plain = compiled(value), model(value)
        for part in ("a", "b"):
            torch.testing.assert_close(getattr(mine, part), getattr(plain, part))

    for _ in range(3):
        check_parts()
    assert packer.binds == 2, "once for each part"
    with torch.no_grad():
        model.weight.b.mul_(2)
    check_parts()
    model.weight.a.data[1, 2] = 5.0
    mixbackend.invalidate(model)
    check_parts()
    assert kinds(mixture).count("weights_rebuilt") == 2
