"""A traced graph that was read from its text is, for all that follows, the one that was written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dynamic_programs import dynamic_program, inputs_of
from torch import nn
from torch.nn import functional

from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import Config
from mixbackend.contracts import InputRole, RegionTextError
from mixbackend.contracts.torch_compat import boxed, is_fake, saved_positions
from mixbackend.graph.capture import capture
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.identity import Captured
from mixbackend.graph.traced import Traced


class Gathered:
    """The ATen graphs of what it is the backend of; they run as they were traced."""

    def __init__(self) -> None:
        self.graphs: list[Traced] = []

    def __call__(self, graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return capture(graph_module, inputs, self._keep, lambda joint: None)

    def _keep(self, traced: Traced) -> Callable[[list[Any]], Any]:
        self.graphs.append(traced)
        return boxed(lambda arguments: torch.fx.Interpreter(traced.module).boxed_run(arguments))


class Network(nn.Module):
    """What makes a forward, a backward, updated buffers and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits, one row for each image."""
        return self.head(functional.dropout(self.norm(self.convolution(image)).relu(), 0.3).mean((-1, -2)))


def attention(x: torch.Tensor) -> torch.Tensor:
    query, key, value = x.unflatten(-1, (4, 3, -1)).permute(2, 0, 1, 3).unsqueeze(0).unbind(1)
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[1:].t(), x[:, ::2], x.as_strided((2, 2), (1, 3), 4), x.relu().flatten()[5:]


def updates(cache: torch.Tensor, position: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    cache.index_copy_(0, position, new)
    return cache.sum(0) * float("-inf")


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], bool | None]] = {
    "training": (Network(), (torch.randn(5, 3, 8, 8),), None),
    "training, sizes not known": (Network(), (torch.randn(5, 3, 8, 8),), True),
    "attention": (attention, (torch.randn(6, 48, requires_grad=True),), None),
    "views": (views, (torch.randn(6, 7),), None),
    "views, sizes not known": (views, (torch.randn(6, 7),), True),
    "views of a part": (views, (torch.randn(9, 9)[2:, 1:8],), None),
    "updates": (updates, (torch.zeros(8, 4), torch.tensor([2, 5]), torch.ones(2, 4)), None),
    "bfloat16 and complex": (
        lambda x: (torch.fft.rfft(x.float()).abs(), x.cumsum(0)),
        (torch.randn(4, 8, dtype=torch.bfloat16),),
        None,
    ),
    "constants": (lambda x: x + torch.tensor([1.0, float("nan"), 2.5]), (torch.randn(4, 3),), None),
    "nothing": (lambda x: x[:0].exp(), (torch.randn(4, 3),), None),
}
for seed in (1, 2, 5, 9):
    PROGRAMS[f"dynamic {seed}"] = (dynamic_program(seed), tuple(inputs_of(seed, 0)), True)


def traced(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...], dynamic: bool | None) -> list[Traced]:
    torch._dynamo.reset()
    gathered = Gathered()
    result = torch.compile(function, backend=gathered, dynamic=dynamic)(*inputs)
    if isinstance(result, torch.Tensor) and result.requires_grad:
        result.sum().backward()
    assert gathered.graphs
    return gathered.graphs


def described(value: Any) -> Any:
    """What is known of a fake value, with the values that its sizes had."""
    if isinstance(value, tuple | list):
        return [described(item) for item in value]
    if not isinstance(value, torch.Tensor):
        return type(value), value.node.hint if isinstance(value, torch.SymInt) else value
    assert is_fake(value)
    numbers = [*value.shape, *value.stride(), value.storage_offset()]
    hints = [item.node.hint if isinstance(item, torch.SymInt) else item for item in numbers]
    return value.dtype, value.device, [isinstance(item, torch.SymInt) for item in numbers], hints


def known_as(graph: Traced) -> tuple[str, Any]:
    """The key that plans are found by, or why there is none; and which memory is shared."""
    captured = Captured(graph.module, graph.phase, dict(graph.roles), "graph", graph.sharing)
    try:
        return captured.identity.key, captured.expected_sharing
    except RegionTextError as error:
        return error.what, captured.expected_sharing


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_read_is_what_was_written(name: str) -> None:
    for graph in traced(*PROGRAMS[name]):
        text = graph.text()
        read = text.read()
        assert read.text() == text
        assert (read.phase, read.outputs, read.roles) == (graph.phase, graph.outputs, graph.roles)
        nodes, again = list(graph.module.graph.nodes), list(read.module.graph.nodes)
        assert [(node.op, node.name, str(node.target)) for node in again if node.op != "get_attr"] == [
            (node.op, node.name, str(node.target)) for node in nodes if node.op != "get_attr"
        ]
        for old, new in zip(nodes[:-1], again[:-1], strict=True):
            assert described(new.meta["val"]) == described(old.meta["val"]), old.name
        assert saved_positions(again[-1]) == saved_positions(nodes[-1])
        assert known_as(read) == known_as(graph)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if "dynamic" in name or "not known" in name])
def test_compiling_what_was_read_supposes_nothing_of_its_sizes(name: str) -> None:
    """Torch stores the guards of the process that traced: what was read must need no others."""
    for graph in traced(*PROGRAMS[name]):
        read = graph.text().read()
        values = [node.meta["val"] for node in read.module.graph.nodes if "val" in node.meta]
        sizes = [size for value in values if isinstance(value, torch.Tensor) for size in value.shape]
        symbols = [size for size in (*values, *sizes) if isinstance(size, torch.SymInt)]
        if not symbols:
            continue
        known = symbols[0].node.shape_env
        before = list(known.guards)
        mixture = Mixture(Config.model_validate({"select": "off"}))
        mixture.compile_captured(read.module, read.phase, dict(read.roles))
        assert list(known.guards) == before


def test_source_lines_and_modules_are_kept() -> None:
    graph = traced(Network(), (torch.randn(5, 3, 8, 8),), None)[0]
    origins = {origin[1:] for origin in graph.text().read().text().origins}
    assert "Conv2d" in {kind for kind, _ in origins}
    assert any(line.startswith("File ") and "test_traced.py" in line for _, line in origins)


def test_symbolic_floats_have_no_text() -> None:
    (graph,) = traced(lambda x: x * (x.shape[0] / 3), (torch.randn(4, 3),), True)
    with pytest.raises(RegionTextError, match="SymFloat"):
        graph.text()


def test_roles_keep_names_of_weights() -> None:
    graph = traced(Network(), (torch.randn(5, 3, 8, 8),), None)[0]
    weights = {role.source for role in graph.text().read().roles.values() if role.role is InputRole.PARAMETER}
    assert any("convolution" in source for source in weights)
    assert PlaceholderRole(InputRole.BUFFER, "") not in graph.roles.values()
