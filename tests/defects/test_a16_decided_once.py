"""A16: what a backward compares for equality is the forward's own value, also where another backend runs the backward.

The forward runs on a backend whose results differ in their last places from eager's, as those of any compiler may; the
backward runs in eager. A mask or an index that the backward computed again would not be the forward's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx
from plain_backend import PlainBackend
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import mixbackend
from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import CompiledRegion, Region, Traits
from mixbackend.graph.discontinuities import _KERNELS_THAT_COMPARE
from mixbackend.registry import isolated_registry

_OFF = 1 + 2.0**-20
_ROUNDED = ("aten.mul", "aten.sub", "aten.add", "aten.exp", "aten.div", "aten.sin", "aten.tanh")


class _RoundsOtherwise(torch.fx.Interpreter):
    """Results of arithmetic are off by a few units in the last place."""

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        off = str(n.target).startswith(_ROUNDED) and isinstance(value, torch.Tensor) and value.is_floating_point()
        return value * _OFF if off else value


class Otherwise(PlainBackend):
    """Runs regions with torch, and rounds otherwise than eager."""

    name = "otherwise"

    def traits(self) -> Traits:
        return Traits(fused=frozenset({("pointwise", "pointwise"), ("pointwise", "reduction")}))

    def compile(self, region: Region) -> CompiledRegion:
        module = region.graph_module

        def run(inputs: Sequence[Any]) -> list[torch.Tensor]:
            return [output.contiguous() for output in _RoundsOtherwise(module).run(*inputs)]

        return CompiledRegion(run, strides="contiguous")


@pytest.fixture
def make_mixture(tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """A mixture whose forward rounds otherwise than eager; takes the backend of the backward."""

    def make(backward: str) -> Any:
        return mixbackend.auto(
            {
                "backends": ["otherwise", "eager"],
                "rules": [
                    {"match": {"phase": "backward"}, "require": backward},
                    {"match": {"phase": "forward"}, "require": "otherwise"},
                ],
                "verify": {"when": "off"},
                "cache": {"dir": str(tmp_path)},
            }
        )

    with isolated_registry():
        mixbackend.register_backend(Otherwise())
        mixbackend.register_backend(EagerBackend())
        yield make


def _uneven(value: torch.Tensor) -> torch.Tensor:
    """Arithmetic that is cheap enough to be repeated in a backward."""
    return torch.sin(value * 3) - value * 0.5


def _maximum(value: torch.Tensor) -> torch.Tensor:
    first = _uneven(value)
    return torch.maximum(first, first.flip(0)).square().sum()


def _attention(value: torch.Tensor) -> torch.Tensor:
    attended = functional.scaled_dot_product_attention(value, value, value).abs()
    peak = torch.sub(attended, attended, alpha=3).max()
    return torch.rsqrt(torch.var_mean(peak, 0, correction=0)[1].abs() + 1)


CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "attention": _attention,
    "max": lambda value: _uneven(value).max().square(),
    "min": lambda value: _uneven(value).min().square(),
    "amax": lambda value: _uneven(value).amax(-1).square().sum(),
    "amin": lambda value: _uneven(value).amin((0, 1)).square().sum(),
    "max of rows": lambda value: _uneven(value).max(-1).values.square().sum(),
    "median": lambda value: _uneven(value).median().square(),
    "nanmedian": lambda value: _uneven(value).nanmedian().square(),
    "infinite norm": lambda value: torch.linalg.vector_norm(_uneven(value), float("inf")).square(),
    "maximum": _maximum,
    "argmax": lambda value: _uneven(value).gather(-1, _uneven(value).argmax(-1, keepdim=True)).square().sum(),
    "topk": lambda value: _uneven(value).topk(3, -1).values.square().sum(),
    "mask": lambda value: torch.where(_uneven(value) > 0.1, value.exp(), value.square()).sum(),
    "distance": lambda value: torch.cdist(_uneven(value), value, p=float("inf")).square().sum(),
    "scatter": lambda value: (
        torch.zeros_like(value)
        .scatter_reduce(-1, torch.zeros(value.shape, dtype=torch.long), _uneven(value), "amax", include_self=False)
        .square()
        .sum()
    ),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
def test_a_backward_sees_what_the_forward_decided(make_mixture: Callable[[str], Any], name: str) -> None:
    torch.manual_seed(0)
    value = torch.randn(6, 4, 7, requires_grad=True)
    expected = value.detach().clone().requires_grad_()
    mixture = make_mixture("eager")
    torch.compile(CASES[name], backend=mixture)(value).backward()
    CASES[name](expected).backward()
    assert value.grad is not None
    torch.testing.assert_close(value.grad, expected.grad, rtol=1e-3, atol=1e-4)
    forward, backward = mixture.report().to_dict()["graphs"]
    assert "otherwise" in {region["backend"] for region in forward["regions"]}
    assert {region["backend"] for region in backward["regions"]} == {"eager"}


def test_steps_of_the_forward_are_not_repeated(make_mixture: Callable[[str], Any]) -> None:
    """A value at the edge of a step is on one side of it, in the output and in the gradient."""
    value = torch.arange(1, 65, dtype=torch.float32).div(2).requires_grad_()

    def function(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        step = torch.round(value * 1.0)
        return (step * value).sum(), step

    total, step = torch.compile(function, backend=make_mixture("eager"))(value)
    total.backward()
    assert value.grad is not None
    torch.testing.assert_close(value.grad, step.detach(), rtol=1e-5, atol=0)


def test_a_router_inside_a_checkpoint_chooses_once(make_mixture: Callable[[str], Any]) -> None:
    def route(value: torch.Tensor) -> torch.Tensor:
        weights, chosen = _uneven(value).topk(2, -1)
        return (weights.softmax(-1) * value.gather(-1, chosen)).sum(-1)

    def function(value: torch.Tensor) -> torch.Tensor:
        return checkpoint(route, value, use_reentrant=False).square().sum()

    value = torch.randn(6, 4, 7, requires_grad=True)
    expected = value.detach().clone().requires_grad_()
    mixture = make_mixture("eager")
    torch.compile(function, backend=mixture)(value).backward()
    function(expected).backward()
    assert value.grad is not None
    torch.testing.assert_close(value.grad, expected.grad, rtol=1e-3, atol=1e-4)
    _, backward = mixture.report().to_dict()["graphs"]
    repeated = {op for region in backward["regions"] for op in region["ops"]}
    assert "aten.topk.default" not in repeated
    assert "aten._softmax.default" in repeated


def test_what_has_the_same_bits_everywhere_is_not_saved(make_mixture: Callable[[str], Any]) -> None:
    """A mask made of inputs costs no memory between forward and backward."""
    value = torch.randn(64, 64, requires_grad=True)
    mixture = make_mixture("otherwise")
    torch.compile(lambda value: torch.where(value > 0, value.square(), value.exp()).sum(), backend=mixture)(
        value
    ).backward()
    _, backward = mixture.report().to_dict()["graphs"]
    assert "aten.gt.Scalar" in {op for region in backward["regions"] for op in region["ops"]}


_SMOOTH = {
    "_euclidean_dist_backward",
    "_log_softmax_backward_data",
    "_softmax_backward_data",
    "_sparse_log_softmax_backward_data",
    "_sparse_softmax_backward_data",
    "cumprod_backward",  # written out by tracing
    "elu_backward",
}
"""Derivatives that compare nothing with the result."""
_NOT_TRACED = {"mkldnn_max_pool2d_backward", "mkldnn_max_pool3d_backward"}
"""Of tensors in a layout that graphs do not hold."""


def test_every_derivative_that_may_compare_is_known() -> None:
    """torch's formulas that read an input and the result, and stay one operator when they are traced."""
    torchgen = pytest.importorskip("torchgen")
    path = Path(torchgen.__file__).parent / "packaged" / "autograd" / "derivatives.yaml"
    if not path.exists():
        pytest.skip("this torch does not ship its derivative formulas")
    found: set[str] = set()
    for line in path.read_text("utf-8").splitlines():
        call = re.search(r"\b(\w+_backward\w*)\((.*)", line)
        if call is not None and {"result"} < set(re.findall(r"\w+", call[2])) & {"result", "self", "x1", "data"}:
            found.add(call[1])
    operators = {name for name in found if hasattr(torch.ops.aten, name)}
    assert operators - _SMOOTH - _NOT_TRACED == set(_KERNELS_THAT_COMPARE)
