"""Rows of the rate tables: what an op is asked about, and what a backend that does not state it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mixbackend.contracts import BackendRates, InputRole, OpRate, OpView, TensorMeta
from mixbackend.contracts.rate_rows import is_channels_last, is_rate_row, rate_row, wider_rows
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_graph

aten = torch.ops.aten
CONSTANT = PlaceholderRole(InputRole.CONSTANT)
PARAMETER = PlaceholderRole(InputRole.PARAMETER)


def view_of(
    function: Callable[..., Any], *inputs: Any, roles: dict[int, PlaceholderRole] | None = None, dynamic: bool = False
) -> OpView:
    """The last op that is no view."""
    _, graph = trace_graph(function, inputs, roles=roles, dynamic=dynamic)
    views = [graph.view(node.name) for node in graph.placed_nodes]
    return [view for view in views if view.op_class in ("matmul", "convolution", "pooling")][-1]


def convolve(image: Any, weight: Any, groups: int = 1) -> Any:
    rank = image.dim() - 2
    return aten.convolution(image, weight, None, [1] * rank, [1] * rank, [1] * rank, False, [0] * rank, groups)


def last(tensor: torch.Tensor) -> torch.Tensor:
    layout = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return tensor.contiguous(memory_format=layout)


IMAGE, WEIGHT, DEPTHWISE = torch.randn(2, 16, 6, 6), torch.randn(8, 16, 3, 3), torch.randn(16, 1, 3, 3)


def depthwise(image: Any, weight: Any) -> Any:
    return convolve(image, weight, 16)


@pytest.mark.parametrize(
    ("function", "inputs", "constant", "row"),
    [
        (convolve, (IMAGE, WEIGHT), False, "convolution"),
        (convolve, (last(IMAGE), WEIGHT), False, "convolution/channels_last"),
        (convolve, (IMAGE, WEIGHT), True, "convolution/constant"),
        (convolve, (last(IMAGE), WEIGHT), True, "convolution/channels_last/constant"),
        (convolve, (IMAGE, last(WEIGHT)), False, "convolution"),
        (depthwise, (IMAGE, DEPTHWISE), False, "convolution/grouped"),
        (depthwise, (last(IMAGE), DEPTHWISE), True, "convolution/grouped/channels_last/constant"),
        (lambda x, w: convolve(x, w, 2), (IMAGE, torch.randn(8, 8, 3, 3)), False, "convolution/grouped"),
        (lambda x, w: convolve(x, w, 1), (IMAGE[:, :3], torch.randn(8, 3, 3, 3)), False, "convolution"),
        (convolve, (last(torch.randn(1, 4, 3, 3, 3)), torch.randn(4, 4, 3, 3, 3)), False, "convolution/channels_last"),
        (aten.mm, (torch.randn(3, 4), torch.randn(4, 5)), False, "matmul"),
        (aten.mm, (torch.randn(3, 4), torch.randn(4, 5)), True, "matmul/constant"),
        (lambda x, w: aten.mm(x, aten.t(w)), (torch.randn(3, 4), torch.randn(5, 4)), True, "matmul/constant"),
        (aten.mm, (torch.randn(1, 4), torch.randn(4, 5)), False, "matmul/one_row"),
        (aten.mm, (torch.randn(1, 4), torch.randn(4, 5)), True, "matmul/one_row/constant"),
        (lambda x, w: aten.addmm(w[0], x, w), (torch.randn(1, 4), torch.eye(4)), True, "matmul/one_row/constant"),
        (aten.bmm, (torch.randn(3, 1, 4), torch.randn(3, 4, 5)), False, "matmul/batched"),
        (
            lambda x, w: aten.mm(x, aten.split(aten.t(w), 2, 1)[0]),
            (torch.eye(4), torch.eye(4)),
            True,
            "matmul/constant",
        ),
        (lambda x, w: aten.mm(x, aten.relu(w)), (torch.eye(4), torch.eye(4)), True, "matmul"),
        (lambda x, w: aten.mm(w, x), (torch.eye(4), torch.eye(4)), True, "matmul"),
        (lambda x, w: aten.addmm(w, x, x), (torch.eye(4), torch.ones(4)), True, "matmul"),
        (lambda x, _: aten.avg_pool2d(x, [2, 2]), (last(IMAGE), WEIGHT), True, "pooling"),
    ],
)
def test_rows(function: Callable[..., Any], inputs: tuple[Any, ...], constant: bool, row: str) -> None:
    view = view_of(function, *inputs, roles={1: CONSTANT if constant else PARAMETER})
    assert rate_row(view) == row
    assert is_rate_row(row)
    assert row.split("/")[0] == view.op_class


def test_the_backward_of_a_convolution_has_its_layout() -> None:
    def backward(gradient: Any, image: Any, weight: Any) -> Any:
        return aten.convolution_backward(
            gradient, image, weight, [8], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
        )[:2]

    gradient = torch.randn(2, 8, 6, 6)
    assert rate_row(view_of(backward, gradient, IMAGE, WEIGHT)) == "convolution/gradient"
    assert rate_row(view_of(backward, gradient, last(IMAGE), WEIGHT)) == "convolution/channels_last/gradient"


@pytest.mark.parametrize(
    ("function", "shapes", "row"),
    [
        (lambda x, y: aten.mm(aten.t(x), y), ((6, 4), (6, 5)), "matmul/turned"),
        (lambda x, y: aten.mm(x, aten.t(y)), ((4, 6), (5, 6)), "matmul"),
        (lambda x, y: aten.mm(aten.t(x), y), ((1, 4), (1, 5)), "matmul"),
        (lambda x, y: aten.mm(aten.t(x), y), ((6, 1), (6, 5)), "matmul/one_row"),
        (lambda x, y: aten.bmm(aten.transpose(x, 1, 2), y), ((2, 6, 4), (2, 6, 5)), "matmul/batched"),
    ],
)
def test_products_with_a_turned_left_matrix_have_a_row(function: Any, shapes: Any, row: str) -> None:
    assert rate_row(view_of(function, *map(torch.randn, shapes))) == row


def test_symbolic_sizes_count_with_their_hints() -> None:
    view = view_of(convolve, last(IMAGE), WEIGHT, dynamic=True)
    assert rate_row(view) == "convolution/channels_last"


def meta(shape: tuple[int, ...], stride: tuple[int, ...]) -> TensorMeta:
    return TensorMeta(shape, stride, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize(
    ("shape", "stride", "expected"),
    [
        ((2, 3, 4, 5), (60, 1, 15, 3), True),
        ((2, 3, 4, 5), (60, 20, 5, 1), False),
        ((1, 3, 4, 5), (7, 1, 15, 3), True),
        ((2, 1, 4, 5), (20, 1, 5, 1), False),
        ((2, 3, 1, 1), (3, 1, 3, 3), False),
        ((0, 3, 4, 5), (60, 1, 15, 3), False),
        ((2, 3, 4, 5), (120, 1, 30, 6), False),
        ((3, 4, 5), (20, 1, 3), False),
    ],
)
def test_layouts_that_count_as_channels_last(shape: tuple[int, ...], stride: tuple[int, ...], expected: bool) -> None:
    assert is_channels_last(meta(shape, stride)) is expected


@pytest.mark.parametrize(
    "text", ["cooking", "", "convolution/", "convolution/constant/grouped", "matmul/constant/constant"]
)
def test_what_is_no_row(text: str) -> None:
    assert not is_rate_row(text)


def test_fallback_drops_the_last_qualifier_then_the_dtype() -> None:
    stated = {"convolution": 1.0, "convolution/channels_last": 2.0, "convolution/grouped": 3.0}
    rows = [(row, "float32", OpRate(0.0, speed)) for row, speed in stated.items()]
    rates = BackendRates("b", 0.0, 0.0, rates=(*rows, ("convolution", "bfloat16", OpRate(0.0, 4.0))))

    def speed(row: str, dtype: str = "float32") -> float:
        found = rates.rate(row, dtype)
        assert found is not None
        return found.flops_per_s

    assert speed("convolution/channels_last/constant") == 2.0
    assert speed("convolution/constant") == 1.0
    assert speed("convolution/grouped/channels_last/constant") == 3.0
    assert speed("convolution/channels_last", "bfloat16") == 4.0
    assert speed("convolution/channels_last", "float64") == 2.0
    assert rates.rate("matmul/constant", "float32") is None
    assert wider_rows("a/b/c") == ("a/b/c", "a/b", "a")
