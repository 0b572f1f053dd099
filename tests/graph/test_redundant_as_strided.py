"""``as_strided`` is a reshape where it says of its input what holds anyway, and stays what it is elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.graph.redundant_as_strided import reshape_restated_strides

aten = torch.ops.aten


def _rewritten(function, *inputs):
    """Rewrites a traced function; its results, strides included, must stay what they were."""
    module = make_fx(torch.func.functionalize(function), tracing_mode="fake")(*inputs)
    module.graph.eliminate_dead_code()
    count = reshape_restated_strides(module)
    module.graph.lint()
    module.recompile()
    assert torch.equal(module(*inputs), function(*inputs))
    return count, module


def _stated(value: torch.Tensor, *strides: int, offset: int | None = None) -> torch.Tensor:
    return torch.as_strided(value, value.shape, strides, offset) * 2


def test_axes_of_length_one_have_no_strides() -> None:
    count, module = _rewritten(lambda value: _stated(value, 8, 1, 8, 8), torch.randn(3, 8, 1, 1))
    assert count == 1
    assert not module.graph.find_nodes(op="call_function", target=aten.as_strided.default)


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
        ((4, 4), (1, 4), None),  # transposed
        ((4, 4), (0, 1), None),  # one row again and again
        ((1, 4), (4, 1), 2),  # somewhere else in memory
    ],
)
def test_other_elements_are_read_as_before(shape, strides, offset) -> None:
    base = torch.randn(64)[: torch.Size(shape).numel()].view(shape)
    count, _ = _rewritten(lambda value: _stated(value, *strides, offset=offset), base)
    assert count == 0


def test_other_sizes_are_read_as_before() -> None:
    count, _ = _rewritten(lambda value: torch.as_strided(value, (2, 4), (4, 1)) + 1, torch.randn(4, 4))
    assert count == 0


@pytest.mark.parametrize("dynamic", [False, True])
def test_pooling_a_channels_last_image_to_one_pixel_keeps_every_op_with_its_backend(make_mixture, loopback, dynamic):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    model = model.to(memory_format=torch.channels_last).eval()
    image = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    mixture = make_mixture(loopback)
    with torch.no_grad():
        found = torch.compile(model, backend=mixture, dynamic=dynamic)(image)
        torch.testing.assert_close(found, model(image))
    (graph,) = mixture.report().to_dict()["graphs"]
    assert "aten.as_strided.default" not in {op for region in graph["regions"] for op in region["ops"]}
