"""Weights changed in any way are seen at the next call (FACTS of torch: many changes bump no version counter)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mixbackend
from mixbackend.compile.mixture import Mixture
from mixbackend.contracts import InputRole
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_graph


def in_place(model):
    with torch.no_grad():
        model.weight.mul_(2)


def load_state_dict(model):
    model.load_state_dict({"weight": torch.randn(4, 4), "bias": torch.randn(4)})


def assign_state_dict(model):
    model.load_state_dict({"weight": torch.randn(4, 4), "bias": torch.randn(4)}, assign=True)


def through_data(model):
    model.weight.data.mul_(3)


def replace_data(model):
    model.weight.data = torch.randn(4, 4)


def new_parameter(model):
    model.weight = nn.Parameter(torch.randn(4, 4))


def numpy_alias(model):
    model.weight.detach().numpy()[:] = 1.5


def move(model):
    model.to(torch.float64).to(torch.float32)
    model.weight.data.add_(1)


def low_rank_merge(model):
    """As adapters are merged: through ``.data``, which counts nothing."""
    model.weight.data += torch.randn(4, 2) @ torch.randn(2, 4)


def set_storage(model):
    with torch.no_grad():
        model.weight.set_(torch.randn(4, 4))


def swap(model):
    torch.utils.swap_tensors(model.weight, nn.Parameter(torch.randn(4, 4)))


def from_vector(model):
    nn.utils.vector_to_parameters(torch.randn(20), model.parameters())


def initialise(model):
    nn.init.constant_(model.weight, 0.25)


def one_bias(model):
    """One element, through ``.data``: small tensors are compared whole."""
    model.bias.data[3] = 17.0


def optimizer_step(optimizer_class, **options):
    def change(model):
        optimizer = optimizer_class(model.parameters(), lr=0.1, **options)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    change.__name__ = f"{optimizer_class.__name__}_{'_'.join(options)}"
    return change


CHANGES = [
    in_place,
    load_state_dict,
    assign_state_dict,
    through_data,
    replace_data,
    new_parameter,
    numpy_alias,
    move,
    low_rank_merge,
    set_storage,
    swap,
    from_vector,
    initialise,
    one_bias,
    optimizer_step(torch.optim.SGD),
    optimizer_step(torch.optim.SGD, fused=True),
    optimizer_step(torch.optim.AdamW, fused=True),
    optimizer_step(torch.optim.Adam, fused=True),
    optimizer_step(torch.optim.Adagrad, fused=True),
    optimizer_step(torch.optim.Adam, foreach=True),
    optimizer_step(torch.optim.AdamW, foreach=False),
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("weights", ["live", "auto"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_change_is_seen(make_mixture, packer, change, weights):
    model = nn.Linear(4, 4).eval()
    compiled = torch.compile(model, backend=make_mixture(packer, weights=weights))
    value = torch.randn(2, 4)
    with torch.no_grad():
        first = compiled(value).clone()
        compiled(value)
    change(model)
    with torch.no_grad():
        mine, eager = compiled(value), model(value)
    torch.testing.assert_close(mine, eager)
    assert not torch.allclose(mine, first), "the change must change the result, or the test shows nothing"
    assert (packer.binds > 0) == (weights == "auto")


@pytest.mark.parametrize("channels", [4, 512])
def test_batch_norm_statistics_updated_by_eager_training_are_seen(make_mixture, packer, channels):
    model = nn.BatchNorm1d(channels).eval()
    compiled = torch.compile(model, backend=make_mixture(packer))
    value = torch.randn(8, channels)
    with torch.no_grad():
        first = compiled(value).clone()
        model.train()
        for _ in range(3):
            model(value * 5 + 2)
        model.eval()
        mine, eager = (
            compiled(value),
            nn.functional.batch_norm(
                value, model.running_mean, model.running_var, model.weight, model.bias, eps=model.eps
            ),
        )
    torch.testing.assert_close(mine, eager)
    assert not torch.allclose(mine, first)


def test_a_graph_follows_a_weight_that_took_another_shape():
    """As a buffer that an ``unsqueeze_`` reshapes in a call; not every torch traces such a program again."""
    mixture = Mixture(mixbackend.Config())
    buffer = torch.tensor([[1.5], [2.5], [-3.2]])
    module, _ = trace_graph(lambda x, b: (b.round(), x * b[:, 0].sum()), [torch.ones(2), buffer])
    name = module.graph.find_nodes(op="placeholder")[1].name
    run = mixture.compile_captured(module, "inference", {name: PlaceholderRole(InputRole.BUFFER, "b")})
    for _ in range(3):
        rounded, scaled = run([torch.ones(2), buffer])
        torch.testing.assert_close(rounded, buffer.round())
        torch.testing.assert_close(scaled, torch.ones(2) * buffer[:, 0].sum())
        buffer.unsqueeze_(0)
    kinds = [event["kind"] for event in mixture.report().to_dict()["events"]]
    assert kinds.count("fallback") == 1
