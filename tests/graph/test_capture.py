"""What users of torch.compile do, with a foreign backend in the mixture: results, strides and random state as eager."""

from __future__ import annotations

import copy

import pytest
import torch
import torch._dynamo.testing
from torch import nn


def both(model, mixture, *inputs, **options):
    """The model's results compiled and in eager, from equal states."""
    reference = copy.deepcopy(model) if isinstance(model, nn.Module) else model
    compiled = torch.compile(model, backend=mixture, **options)
    torch.manual_seed(7)
    mine = compiled(*inputs)
    torch.manual_seed(7)
    return mine, reference(*inputs)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(8 * 36, 4)
    )


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, value):
        return self.linear(value).tanh()


def test_training_step_equals_eager(make_mixture, loopback):
    mixture = make_mixture(loopback)
    model, reference = network(), None
    reference = copy.deepcopy(model)
    compiled = torch.compile(model, backend=mixture)
    optimizers = [torch.optim.SGD(item.parameters(), lr=0.1) for item in (model, reference)]
    for step in range(3):
        image = torch.randn(5, 3, 8, 8)
        losses = []
        for run, optimizer in zip((compiled, reference), optimizers, strict=True):
            torch.manual_seed(step)
            optimizer.zero_grad()
            loss = run(image).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        torch.testing.assert_close(*losses)
    for mine, theirs in zip(model.state_dict().values(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs)
    phases = [graph["phase"] for graph in mixture.report().to_dict()["graphs"]]
    assert phases == ["forward", "backward"]
    owners = {region["backend"] for graph in mixture.report().to_dict()["graphs"] for region in graph["regions"]}
    assert owners == {"loopback", "eager"}, "random and mutating ops belong to eager, the rest to the cheaper backend"


def test_channels_last_strides_survive_a_row_major_backend(make_mixture, loopback):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval().to(memory_format=torch.channels_last)
    image = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    with torch.no_grad():
        mine, eager = both(model, make_mixture(loopback), image)
    torch.testing.assert_close(mine, eager)
    assert mine.stride() == eager.stride()


def test_dropout_draws_eagers_numbers_whatever_the_layout(make_mixture, loopback):
    model = nn.Sequential(nn.ReLU(), nn.Dropout(0.5), nn.Dropout(0.3)).train()
    value = torch.randn(4, 8, 6, 6).to(memory_format=torch.channels_last)
    mine, eager = both(model, make_mixture(loopback), value)
    torch.testing.assert_close(mine, eager, rtol=0, atol=0)
    follow_up = torch.rand(3)
    torch.manual_seed(7)
    model(value)
    assert torch.equal(follow_up, torch.rand(3)), "the random state after the call is eager's"


@pytest.fixture
def without_fused_layer():
    """Torch 2.11 leaves a whole encoder layer to eager where its fused kernel applies, whatever the backend."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def test_dynamic_sizes_compile_once(make_mixture, loopback, without_fused_layer):
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    mixture = make_mixture(loopback)
    compiled = torch.compile(model, backend=mixture, dynamic=True)
    with torch.no_grad():
        for length in (4, 5, 17, 64, 256):
            value = torch.randn(2, length, 16)
            torch.testing.assert_close(compiled(value), model(value), rtol=1e-4, atol=1e-5)
    graphs = mixture.report().to_dict()["graphs"]
    assert len(graphs) == 1
    assert graphs[0]["dynamic"]


def test_guards_are_those_of_aot_eager(make_mixture, loopback):
    """No verdict, cost or cut may specialise a symbolic size."""

    def function(value):
        return torch.softmax(value.view(-1, 8) * 2, -1).sum(0)

    counts = []
    for backend in ("aot_eager", make_mixture(loopback)):
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounterWithBackend(backend) if isinstance(backend, str) else None
        compiled = torch.compile(function, backend=counter or backend, dynamic=True)
        for rows in (2, 3, 8, 40):
            compiled(torch.randn(rows, 8))
        counts.append(counter.frame_count if counter else len(backend.report().graphs))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("fullgraph", [False, True])
def test_fullgraph_and_graph_breaks(make_mixture, loopback, fullgraph):
    def function(value):
        value = value * 2
        torch._dynamo.graph_break()
        return value.relu() + 1

    mixture = make_mixture(loopback)
    compiled = torch.compile(function, backend=mixture, fullgraph=fullgraph)
    value = torch.randn(4)
    if fullgraph:
        with pytest.raises(torch._dynamo.exc.Unsupported):
            compiled(value)
        return
    torch.testing.assert_close(compiled(value), function(value))
    assert len(mixture.report().graphs) == 2


def test_disable_never_calls_us(make_mixture, loopback):
    mixture = make_mixture(loopback)
    compiled = torch.compile(torch.relu, backend=mixture, disable=True)
    compiled(torch.randn(3))
    assert mixture.report().graphs == ()


def test_input_mutation_and_its_readers_keep_their_order(make_mixture, loopback):
    def function(buffer, value):
        before = buffer * 2
        buffer.add_(value)
        after = buffer * 3
        buffer.mul_(2)
        return before, after, buffer + 1

    mixture = make_mixture(loopback)
    mine, theirs = torch.randn(4), None
    theirs = mine.clone()
    value = torch.randn(4)
    results = torch.compile(function, backend=mixture)(mine, value)
    for result, expected in zip(results, function(theirs, value), strict=True):
        torch.testing.assert_close(result, expected)
    torch.testing.assert_close(mine, theirs)


def test_outputs_that_alias_inputs_still_alias(make_mixture, loopback):
    def function(value):
        return value.view(-1), value.t(), value + 1

    value = torch.randn(3, 4)
    flat, transposed, _ = torch.compile(function, backend=make_mixture(loopback))(value)
    flat[0] = 42.0
    assert value[0, 0] == 42.0
    assert transposed.data_ptr() == value.data_ptr()


def test_view_of_an_incompatible_layout_behaves_as_reshape(make_mixture, loopback):
    def function(value):
        return (value.permute(1, 0, 2).contiguous().permute(1, 0, 2) * 2).transpose(1, 2).reshape(-1, 4).view(8, -1)

    value = torch.randn(4, 6, 4)
    mine, eager = both(function, make_mixture(loopback), value)
    torch.testing.assert_close(mine, eager)


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(0, 4),
        torch.randn(4, 6).t(),
        torch.randn(8, 4)[::2],
        torch.randn(1, 4).expand(5, 4),
        torch.randn(()),
        torch.randn(9).as_strided((2, 4), (1, 2)),
    ],
    ids=["empty", "transposed", "sliced", "expanded", "scalar", "overlapping"],
)
def test_odd_inputs(make_mixture, loopback, value):
    def function(tensor):
        return tensor.relu() * 2, tensor.sum(), tensor.exp().contiguous()

    mine, eager = both(function, make_mixture(loopback), value)
    for result, expected in zip(mine, eager, strict=True):
        torch.testing.assert_close(result, expected)
        assert result.stride() == expected.stride()


def test_graph_without_tensors_and_constant_outputs(make_mixture, loopback):
    def function(value, number):
        return number + 1, value * number, None

    mine, eager = both(function, make_mixture(loopback), torch.randn(3), 4)
    assert mine[0] == eager[0]
    assert mine[2] is None
    torch.testing.assert_close(mine[1], eager[1])


def test_data_dependent_shapes_run_in_eager(make_mixture, loopback):
    def function(value):
        positive = value[value > 0]
        return positive * 2, torch.nonzero(value)

    mixture = make_mixture(loopback)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        mine, eager = both(function, mixture, torch.randn(10), fullgraph=True)
    for result, expected in zip(mine, eager, strict=True):
        torch.testing.assert_close(result, expected)


def test_cond_is_claimed_whole_by_eager(make_mixture, loopback):
    def function(value):
        return torch.cond(value.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (value,)) * 2

    mixture = make_mixture(loopback)
    for value in (torch.ones(3), -torch.ones(3)):
        mine, eager = both(function, mixture, value, fullgraph=True)
        torch.testing.assert_close(mine, eager)
    refusals = {row["code"] for graph in mixture.report().to_dict()["graphs"] for row in graph["refusals"]}
    assert "higher-order" in refusals


def test_options_override_and_unknown_options_are_refused(make_mixture, loopback):
    mixture = make_mixture(loopback)
    torch.compile(torch.sin, backend=mixture, options={"backends": ["eager"]})(torch.randn(3))
    regions = mixture.report().to_dict()["graphs"][0]["regions"]
    assert [region["backend"] for region in regions] == ["eager"]
    with pytest.raises(Exception, match="bakends"):
        torch.compile(torch.cos, backend=mixture, options={"bakends": ["eager"]})(torch.randn(3))


def test_a_mode_with_cuda_graphs_says_that_there_is_no_gpu(make_mixture, loopback, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    mixture = make_mixture(loopback)
    torch.compile(torch.sin, backend=mixture, mode="reduce-overhead")(torch.randn(3))
    events = mixture.report().to_dict()["events"]
    assert [event["kind"] for event in events] == ["fallback"]
    assert events[0]["detail"] == "mode 'reduce-overhead' runs without CUDA graphs: torch finds no CUDA device"


def test_gradients_through_two_calls_of_one_layer(make_mixture, loopback):
    """One compiled region runs twice per forward, with its outputs saved."""
    layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    reference = copy.deepcopy(layer)
    compiled = torch.compile(layer, backend=make_mixture(loopback))
    value = torch.randn(3, 4)
    compiled(compiled(value)).sum().backward()
    reference(reference(value)).sum().backward()
    for mine, theirs in zip(layer.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_many_instances_of_one_class_share_code_but_not_weights(make_mixture, loopback):
    mixture = make_mixture(loopback)
    layers = [Layer() for _ in range(5)]
    value = torch.randn(2, 4)
    for layer in layers:
        expected = layer(value)
        layer.compile(backend=mixture)
        torch.testing.assert_close(layer(value), expected)
    assert len(loopback.compiled) == 1


def test_repeated_layers_compile_once(make_mixture, loopback):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)) for _ in range(4)]).train()
    mixture = make_mixture(loopback)
    torch.compile(model, backend=mixture)(torch.randn(2, 8))
    regions = [r for r in mixture.report().to_dict()["graphs"][0]["regions"] if r["backend"] == "loopback"]
    keys = {region.key for region in loopback.compiled}
    assert len(loopback.compiled) == len(keys) < len(regions)
    assert any(region["reused_from"] for region in regions)
