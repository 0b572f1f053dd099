"""Channels-last graphs: the same values and output strides as eager, chosen by cost, in inference and in training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from flat_costs import FlatCosts
from stand_in_backends import CHEAPEST_FIRST
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from mixbackend.contracts import Estimate, OpView
from mixbackend.contracts.rate_rows import rate_row
from mixbackend.cost import costs as costs_module
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner.placement import Placements
from mixbackend.plan import layouts
from mixbackend.plan.layouts import channels_last_copy
from mixbackend.plan.planner import Planner

aten = torch.ops.aten


class LikesChannelsLast(FlatCosts):
    """A convolution costs ten milliseconds, unless its image is channels-last."""

    def op(self, backend: str, view: OpView) -> Estimate:
        return (
            Estimate(1e-2, "prior")
            if rate_row(view).startswith("convolution") and not _is_last(view)
            else super().op(backend, view)
        )


@dataclass(frozen=True, kw_only=True)
class ConvolutionsTake(FlatCosts):
    """Convolutions and their gradients cost so much, but on eager.

    Attributes:
        convolution_s: of each.
    """

    convolution_s: float

    def op(self, backend: str, view: OpView) -> Estimate:
        is_cheap = view.op_class == "convolution" and backend not in self.seconds
        return Estimate(self.convolution_s, "prior") if is_cheap else super().op(backend, view)


def _is_last(view: OpView) -> bool:
    return "channels_last" in rate_row(view)


class Residual(nn.Module):
    """Convolutions, batch norm, a depthwise one, pooling, a classifier."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.last = nn.Linear(8, 4)

    def forward(self, image: torch.Tensor) -> Any:
        value = functional.relu(self.norm(self.first(image)))
        value = functional.max_pool2d(self.depthwise(value) + value, 2)
        return self.last(functional.adaptive_avg_pool2d(value, 1).flatten(1)), value


class Dense(nn.Module):
    """Concatenations, and a flattening that no channels-last view could be."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(7, 4, 3, padding=1)
        self.last = nn.Linear(11 * 36, 3)

    def forward(self, image: torch.Tensor) -> Any:
        first = torch.cat([image, self.one(image).relu()], 1)
        second = torch.cat([first, self.two(first).relu()], 1)
        return self.last(second.flatten(1)), second.split(4, 1)[1].exp(), second.mean((2, 3))


class UpAndDown(nn.Module):
    """A transposed convolution, interpolation, padding."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.out = nn.Conv2d(12, 2, 1)

    def forward(self, image: torch.Tensor) -> Any:
        small = functional.silu(self.down(image))
        wide = functional.interpolate(small, scale_factor=2, mode="bilinear")
        near = functional.interpolate(wide, scale_factor=0.5, mode="nearest")
        joined = functional.pad(torch.cat([self.up(small), wide], 1), (1, 0, 0, 1))
        return self.out(joined), near.permute(0, 2, 3, 1)


class Next(nn.Module):
    """Layer norm and linear layers over channels, between permutations."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mix = nn.Conv2d(3, 8, 2, stride=2), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm, self.wide, self.narrow = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        value = self.stem(image)
        mixed = self.norm(self.mix(value).permute(0, 2, 3, 1))
        return value + self.narrow(functional.gelu(self.wide(mixed))).permute(0, 3, 1, 2)


class Volume(nn.Module):
    """Three dimensions, and squeezing to one pixel and back."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.gate = nn.Conv3d(2, 4, 3, padding=1), nn.Conv3d(4, 4, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        value = self.one(image)
        return value * torch.sigmoid(self.gate(value.mean((2, 3, 4), keepdim=True)))


class Views(nn.Module):
    """Outputs that alias inputs and one another."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, image: torch.Tensor) -> Any:
        value = self.one(image)
        return image[:, 1:], value, value.transpose(1, 2), value.flatten(2), value[:, :2]


class Attends(nn.Module):
    """Ops whose layout is not free: attention, rolling, viewing as complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, image: torch.Tensor) -> Any:
        value = self.one(image)
        attended = functional.scaled_dot_product_attention(value, value, value)
        return attended, value.roll(1, 2), torch.view_as_complex(value.unflatten(3, (3, 2))).real, value.cumsum(1)


SHAPE = (2, 3, 6, 6)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, SHAPE),
    "one channel": (lambda: Residual(1), (2, 1, 6, 6)),
    "one pixel": (UpAndDown, (1, 3, 2, 2)),
    "no image": (Residual, (0, 3, 6, 6)),
    "one image": (Residual, (1, 3, 7, 5)),
    "dense": (Dense, SHAPE),
    "u-net": (UpAndDown, (2, 3, 8, 8)),
    "convnext": (Next, (2, 3, 8, 8)),
    "volume": (Volume, (2, 2, 4, 4, 4)),
    "views": (Views, SHAPE),
    "fixed layouts": (Attends, SHAPE),
}


@pytest.fixture(autouse=True)
def _prices(monkeypatch: pytest.MonkeyPatch, _fresh: None) -> None:
    monkeypatch.setattr(
        costs_module, "cost_model", lambda *arguments, **keywords: LikesChannelsLast(seconds={"eager": 1e-3})
    )


def strides(value: torch.Tensor) -> list[int]:
    """Strides where they mean something."""
    return [step for size, step in zip(value.shape, value.stride(), strict=True) if size > 1 and value.numel()]


def assert_same(actual: Any, expected: Any) -> None:
    actual, expected = ((item,) if isinstance(item, torch.Tensor) else tuple(item) for item in (actual, expected))
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        assert strides(mine) == strides(theirs)


def layout_of(mixture: Any, graph: int = 0) -> dict[str, Any]:
    return mixture.report().to_dict()["graphs"][graph]["layout"]


def trace_model(
    model: nn.Module, image: torch.Tensor, **options: Any
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    names, weights = zip(*model.state_dict().items(), strict=True)

    def function(given: torch.Tensor, *values: torch.Tensor) -> Any:
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (given,))

    return trace_graph(function, [image, *weights], **options)[0], [image, *weights]


# --- inference -------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("case", "weights"), [*((case, "auto") for case in CASES), ("residual", "live"), ("dense", "live")]
)
def test_results_and_strides_are_those_of_eager(make_mixture: Any, loopback: Any, case: str, weights: str) -> None:
    make, shape = CASES[case]
    model, image = make().eval(), torch.randn(shape)
    mixture = make_mixture(loopback, weights=weights)
    compiled = torch.compile(model, backend=mixture)
    with torch.no_grad():
        assert_same(compiled(image), model(image))
        assert_same(compiled(image + 1), model(image + 1))
    assert layout_of(mixture)["chosen"] == ("as_traced" if case == "no image" else "channels_last")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", ["residual", "dense", "u-net"])
def test_sizes_that_change(make_mixture: Any, loopback: Any, case: str) -> None:
    make, shape = CASES[case]
    model = make().eval()
    mixture = make_mixture(loopback)
    compiled = torch.compile(model, backend=mixture, dynamic=True)
    with torch.no_grad():
        for batch in (4, 2, 7, 1):
            image = torch.randn(batch, *shape[1:])
            assert_same(compiled(image), model(image))
    assert layout_of(mixture)["chosen"] == "channels_last"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", ["dense", "u-net"])
def test_no_guard_is_added(case: str) -> None:
    make, shape = CASES[case]
    module, _ = trace_model(make().eval(), torch.randn(shape), dynamic=True)
    shape_env = next(iter(module.graph.nodes)).meta["val"].fake_mode.shape_env
    before = list(shape_env.guards)
    assert channels_last_copy(module) is not None
    assert list(shape_env.guards) == before


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("case", "dynamic"),
    [*((case, False) for case in CASES if case != "no image"), ("residual", True), ("convnext", True)],
)
def test_every_value_has_the_strides_that_torch_gives(case: str, dynamic: bool) -> None:
    make, shape = CASES[case]
    module, arguments = trace_model(make().eval(), torch.randn(shape), dynamic=dynamic)
    relaid = channels_last_copy(module)
    assert relaid is not None

    class Compare(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> Any:
            result, known = super().run_node(node), node.meta.get("val")
            if isinstance(result, torch.Tensor) and node.target is not aten.roll.default:
                hints = [step if isinstance(step, int) else step.node.hint for step in known.stride()]
                assert strides(result) == [step for size, step in zip(result.shape, hints, strict=True) if size > 1]
            return result

    with torch.no_grad():
        assert_same(Compare(relaid.module).run(*arguments), module(*arguments))


def test_the_traced_graph_is_left_alone() -> None:
    module, _ = trace_model(Residual().eval(), torch.randn(SHAPE))
    before = [(str(node), node.meta.get("val")) for node in module.graph.nodes]
    relaid = channels_last_copy(module)
    assert relaid is not None
    assert [(str(node), node.meta.get("val")) for node in module.graph.nodes] == before
    names = [node.name for node in relaid.module.graph.nodes]
    assert [name for name in names if name in dict(before)] == [name for name, _ in before]


@pytest.mark.parametrize(
    ("case", "conversions"),
    # One for the image; others for outputs, for what cannot be flattened, and for ops whose layout is not free.
    [("residual", 2), ("dense", 2), ("convnext", 2), ("u-net", 3), ("views", 2), ("fixed layouts", 2)],
)
def test_number_of_conversions(case: str, conversions: int) -> None:
    make, shape = CASES[case]
    module, _ = trace_model(make().eval(), torch.randn(shape))
    relaid = channels_last_copy(module)
    assert relaid is not None
    clones = [
        graph.graph.find_nodes(op="call_function", target=aten.clone.default) for graph in (relaid.module, module)
    ]
    assert relaid.conversions == len(clones[0]) - len(clones[1]) == conversions


@pytest.mark.parametrize(
    ("of_image", "of_convolution", "channels_last"), [(True, False, False), (False, True, False), (True, True, True)]
)
def test_group_norm_of_images_and_gradients(of_image: bool, of_convolution: bool, channels_last: bool) -> None:
    """Eager's kernel is wrong where a gradient lies otherwise than its image, and ends the process where it computes no
    gradient of a channels-last image."""

    def convolved(image: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        return aten.convolution(image, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    def backward(image: torch.Tensor, kernel: torch.Tensor, gradient: torch.Tensor, *saved: torch.Tensor) -> Any:
        gradient = convolved(image, kernel + 1) if of_convolution else gradient
        mask = [of_image, True, True]
        return aten.native_group_norm_backward(gradient, convolved(image, kernel), *saved, 2, 8, 64, 2, mask)[1:]

    shapes = (2, 3, 8, 8), (8, 3, 3, 3), (2, 8, 8, 8), (2, 2), (2, 2), (8,)
    inputs = [torch.rand(shape) for shape in shapes]
    module, _ = trace_graph(backward, inputs)
    relaid = channels_last_copy(module)
    assert relaid is not None
    (node,) = relaid.module.graph.find_nodes(op="call_function", target=aten.native_group_norm_backward.default)
    assert [item.meta["val"].is_contiguous() for item in node.args[:2]] == [not channels_last] * 2
    for mine, expected in zip(relaid.module(*inputs), module(*inputs), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-3)


def test_models_that_are_channels_last_already_need_nothing(make_mixture: Any, loopback: Any) -> None:
    model = Residual().eval().to(memory_format=torch.channels_last)
    image = torch.randn(SHAPE).contiguous(memory_format=torch.channels_last)
    mixture = make_mixture(loopback)
    with torch.no_grad():
        assert_same(torch.compile(model, backend=mixture)(image), model(image))
    assert layout_of(mixture) == {"chosen": "as_traced", "estimated_s": {}, "conversions": 0}


def test_only_images_that_arrive_row_major_are_converted() -> None:
    model = UpAndDown().eval()
    image = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    assert channels_last_copy(trace_model(model, image)[0]) is None


def test_graphs_without_images_are_planned_once(make_mixture: Any, loopback: Any, monkeypatch: Any) -> None:
    placed = []
    original = Placements.plan
    monkeypatch.setattr(Placements, "plan", lambda *args, **kw: placed.append(1) or original(*args, **kw))
    mixture = make_mixture(loopback, select="off")  # rivals are planned as well
    with torch.no_grad():
        torch.compile(nn.Conv1d(3, 4, 3), backend=mixture)(torch.randn(2, 3, 8))
    assert len(placed) == 1
    assert layout_of(mixture)["estimated_s"] == {}


def test_the_cheaper_layout_wins(make_mixture: Any, loopback: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(costs_module, "cost_model", lambda *arguments, **keywords: CHEAPEST_FIRST)
    mixture = make_mixture(loopback)
    model, image = Residual().eval(), torch.randn(SHAPE)
    with torch.no_grad():
        assert_same(torch.compile(model, backend=mixture)(image), model(image))
    layout = layout_of(mixture)
    assert layout["chosen"] == "as_traced"
    assert layout["estimated_s"]["as_traced"] < layout["estimated_s"]["channels_last"]
    assert "layout of images: as_traced" in str(mixture.report())


def test_repairs_keep_the_layout(make_mixture: Any, faulty: Any) -> None:
    broken = faulty(run_error=OSError("gone"), only="aten.relu.default")
    mixture = make_mixture(broken, on_failure="repair")
    model, image = Residual().eval(), torch.randn(SHAPE)
    compiled = torch.compile(model, backend=mixture)
    with torch.no_grad():
        for _ in range(3):
            assert_same(compiled(image), model(image))
    assert layout_of(mixture)["chosen"] == "channels_last"
    assert {event["kind"] for event in mixture.report().to_dict()["events"]} >= {"quarantine", "repair"}


def test_a_convolution_that_refuses_leaves_the_graph_as_traced(monkeypatch: Any) -> None:
    original = layouts.rerun_fake

    def refuse(target: Any, *arguments: Any) -> Any:
        if target is aten.convolution.default:
            raise NotImplementedError("no kernel")
        return original(target, *arguments)

    monkeypatch.setattr(layouts, "rerun_fake", refuse)
    assert channels_last_copy(trace_model(Residual().eval(), torch.randn(SHAPE))[0]) is None


# --- training --------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("case", "dynamic"),
    [*((case, False) for case in ("residual", "one channel", "dense", "u-net", "convnext", "views")), ("dense", True)],
)
def test_training_gives_the_gradients_and_statistics_of_eager(
    make_mixture: Any, loopback: Any, case: str, dynamic: bool
) -> None:
    make, shape = CASES[case]
    theirs = make().train()
    mine = copy.deepcopy(theirs)
    mixture = make_mixture(loopback)
    compiled = torch.compile(mine, backend=mixture, dynamic=dynamic)
    for _ in range(2):
        image = torch.randn(shape)
        images = [image.clone().requires_grad_() for _ in range(2)]
        results = [model(given) for model, given in zip((compiled, theirs), images, strict=True)]
        assert_same(*results)
        for result in results:
            parts = (result,) if isinstance(result, torch.Tensor) else result
            sum((part * part).sum() for part in parts).backward()
        assert_same(*[given.grad for given in images])
    assert_same([value.grad for value in mine.parameters()], [value.grad for value in theirs.parameters()])
    assert_same(list(mine.buffers()), list(theirs.buffers()))
    phases = {graph["phase"]: graph for graph in mixture.report().to_dict()["graphs"]}
    rows = [op for region in phases["forward"]["regions"] for op in region["ops"]]
    assert "aten.clone.default" in rows
    assert mixture.report().to_dict()["events"] == []


def test_dropout_draws_what_eager_draws(make_mixture: Any, loopback: Any) -> None:
    layer = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.5), nn.Conv2d(4, 4, 3))
    image = torch.randn(SHAPE)
    compiled = torch.compile(layer, backend=make_mixture(loopback))
    torch.manual_seed(1)
    mine = compiled(image)
    torch.manual_seed(1)
    assert_same(mine.detach(), layer(image).detach())


def test_a_users_own_layout_is_kept_in_training(make_mixture: Any, loopback: Any) -> None:
    theirs = Residual().train().to(memory_format=torch.channels_last)
    mine = copy.deepcopy(theirs)
    image = torch.randn(SHAPE).contiguous(memory_format=torch.channels_last)
    compiled = torch.compile(mine, backend=make_mixture(loopback))
    results = compiled(image), theirs(image)
    assert_same(*results)
    for result in results:
        (result[0].sum() + result[1].square().sum()).backward()
    assert_same([value.grad for value in mine.parameters()], [value.grad for value in theirs.parameters()])


@pytest.mark.parametrize(("device", "strides"), [("cpu", (200, 1, 40, 8)), ("cuda", (200, 25, 5, 1))])
def test_group_norms_read_rows_on_gpus_whose_kernels_refuse_other_images(device, strides) -> None:
    def normalised(image: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.group_norm(functional.conv2d(image, weight), 4)

    with FakeTensorMode():
        traced = make_fx(normalised)(torch.empty(2, 3, 5, 5, device=device), torch.empty(8, 3, 1, 1, device=device))
    relaid = channels_last_copy(traced)
    assert relaid is not None
    norm = next(node for node in relaid.module.graph.nodes if node.target is aten.native_group_norm.default)
    assert norm.args[0].meta["val"].stride() == strides


# Four convolutions, beside what eager takes three milliseconds for: above and below the share that is worth a plan.
@pytest.mark.parametrize(("seconds", "plans"), [(2e-5, 2), (1e-5, 1)])
def test_a_joint_graph_is_planned_twice_where_its_convolutions_count(
    make_mixture: Any, loopback: Any, monkeypatch: pytest.MonkeyPatch, seconds: float, plans: int
) -> None:
    planned: list[str] = []
    original = Planner.place

    def counted(self: Planner, graph: Any, *rest: Any, **options: Any) -> Any:
        planned.append(graph.id)
        return original(self, graph, *rest, **options)

    monkeypatch.setattr(Planner, "place", counted)
    costs = ConvolutionsTake(seconds={"eager": 1e-3}, convolution_s=seconds)
    monkeypatch.setattr(costs_module, "cost_model", lambda *arguments, **keywords: costs)
    mine, image = Residual().train(), torch.randn(SHAPE)
    theirs = copy.deepcopy(mine)
    results = [model(image) for model in (torch.compile(mine, backend=make_mixture(loopback)), theirs)]
    assert_same(*results)
    for result in results:
        (result[0].sum() + result[1].square().sum()).backward()
    assert_same([value.grad for value in mine.parameters()], [value.grad for value in theirs.parameters()])
    assert planned.count("joint") == plans
