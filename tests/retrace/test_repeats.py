"""A trace in which equal ops are copied is the trace in which each of them was run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from mixbackend.backends.common import retrace as module
from mixbackend.backends.common.repeats import RepeatsCopied
from mixbackend.backends.common.retrace import retrace_apart
from mixbackend.compile.replay import make_inputs
from mixbackend.contracts.torch_compat import storage_key
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten


def block(x: Tensor, weight: Tensor) -> Tensor:
    normal, mean, spread = aten.native_layer_norm(x, [x.shape[-1]], None, None, 1e-5)
    hidden = aten.gelu(aten.mm(normal, aten.t(weight)))
    first, second = aten.split_with_sizes(hidden, [8, 8], 1)
    return aten.add(x, aten.cat([aten.mul(first, second), aten.mul(first, first)], 1)) + mean * spread


def layers(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    for _ in range(3):
        x = block(x, weight)
    return x, aten.t(x), aten._to_copy(x, dtype=torch.float64)


def close_relatives(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Ops that differ in what is easily taken for equal."""
    return (
        *(aten.mul(x, x), aten.mul(x, y), aten.mul(y, x)),
        *(aten.add(x, 1), aten.add(x, 1.0), aten.add(x, True)),
        *(aten.full_like(x, 0.0), aten.full_like(x, -0.0), aten.full_like(x, 0)),
        *(aten.sum(x, [0]), aten.sum(x, [1]), aten.sum(aten.t(x), [0]), aten.sum(x, [0], dtype=torch.float64)),
        *(aten.slice(x, 0, 1, 3), aten.relu(aten.slice(x, 0, 1, 3)), aten.relu(aten.slice(x, 0, 2, 4))),
    )


def handed_on(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Ops that give back what they were given, or a view of it."""
    copies = [aten._to_copy(item, dtype=torch.float32) for item in (x, y)]
    views = [aten.alias(aten.expand(item, list(item.shape))) for item in copies]
    return aten.add(views[0], views[1]), *views, *copies


def several(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Several results, of which some are not used, and views of views."""
    found: list[Tensor] = []
    for item in (x, y):
        values, places = aten.topk(item, 2)
        found += [values, aten.max(item, 1)[1], aten.select(aten.t(aten.unsqueeze(item, 0)[0]), 0, 1)]
        found += [aten.var_mean(item, [1])[1], aten.arange(4, device="cpu"), places]
    return tuple(found)


def with_constants(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Ops on numbers that were computed, and on numbers that the trace knows."""
    known = aten.lift_fresh_copy(torch.tensor(3.0))
    return aten.mul(x, aten.full([], 3.0)), aten.mul(x, known), aten.mul(y, known), aten.mul(y, aten.full([], 3.0))


def fresh_parts(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Copies that lie in fresh memory as a part lies in its whole."""
    parts = [aten.slice(aten.slice(item, 0, 1, 3), 1, 2, 5) for item in (x, y)]
    copies = [aten.copy(part, aten.slice(other, 1, 0, 3)) for part, other in zip(parts, [x[:2], y[:2]], strict=True)]
    return *copies, *(
        aten.slice_scatter(item, copy, 1, 0, 3) for item, copy in zip((x[:2], y[:2]), copies, strict=True)
    )


CASES: dict[str, tuple[Callable[..., Any], Sequence[tuple[int, ...]]]] = {
    "layers": (layers, [(6, 16), (16, 16)]),
    "close relatives": (close_relatives, [(4, 4), (4, 4)]),
    "handed on": (handed_on, [(3, 5), (3, 5)]),
    "several": (several, [(4, 6), (4, 6)]),
    "fresh parts": (fresh_parts, [(4, 6), (4, 6)]),
    "with constants": (with_constants, [(4, 6), (4, 6)]),
}


def _described(traced: module.Retraced) -> list[Any]:
    """Nodes by place, with what their values look like and share."""
    nodes = list(traced.graph_module.graph.nodes)
    place = {node: index for index, node in enumerate(nodes)}
    outputs = [storage_key(value) for value in traced.output_values()]
    told: list[Any] = [[outputs.index(key) for key in outputs]]
    for node in nodes:
        value = node.meta.get("val")
        values = [item for item in (value if isinstance(value, (tuple, list)) else [value]) if item is not None]
        arguments = torch.fx.node.map_arg((node.args, node.kwargs), lambda source: f"%{place[source]}")
        forms = [
            (item.dtype, str(tuple(item.shape)), str(item.stride()), str(item.storage_offset()))
            if isinstance(item, Tensor)
            else str(item)
            for item in values
        ]
        told.append((node.op, str(node.target), repr(arguments), forms, node.meta.get("stack_trace")))
    return told


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", ["none", "core_aten", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_trace_is_that_of_every_op(case: str, dynamic: bool, level: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    function, shapes = CASES[case]
    region = trace_region(function, [torch.randn(shape) for shape in shapes], dynamic=dynamic)
    copied = retrace_apart(region, level)
    monkeypatch.setattr(module, "RepeatsCopied", torch.fx.Interpreter)
    assert _described(copied) == _described(retrace_apart(region, level))


@pytest.mark.parametrize("case", CASES)
def test_it_computes_the_same(case: str) -> None:
    function, shapes = CASES[case]
    region = trace_region(function, [torch.randn(shape) for shape in shapes])
    inputs = make_inputs(region)
    expected = region.graph_module(*inputs)
    for mine, eager in zip(retrace_apart(region, "inductor").graph_module(*inputs), expected, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-5)


def test_what_repeats_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[Any] = []
    original = torch.fx.Interpreter.call_function

    def counted(self: Any, target: Any, args: Any, kwargs: Any) -> Any:
        run.append(target)
        return original(self, target, args, kwargs)

    monkeypatch.setattr(torch.fx.Interpreter, "call_function", counted)
    region = trace_region(layers, [torch.randn(6, 16), torch.randn(16, 16)])
    retrace_apart(region, "inductor")

    assert run.count(aten.native_layer_norm.default) == 1 and run.count(aten.gelu.default) == 1


def test_outside_a_trace_it_says_so() -> None:
    with pytest.raises(ValueError, match="nothing is traced"):
        RepeatsCopied(torch.fx.symbolic_trace(lambda x: x + 1))
