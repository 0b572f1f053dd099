"""A second target: the same kernels in numpy compute what eager does, so nothing in the IR belongs to C++."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from mixbackend_numpy import NumpyBackend
from mixbackend_numpy.operators import OPERATORS

import mixbackend
from mixbackend.backends.codegen.ir.scalar import SCALAR_OPS
from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import Supported, Unsupported
from mixbackend.graph.trace import trace_region
from mixbackend.registry import isolated_registry

ROWS = [torch.randn(6, 33)]
CASES: dict[str, tuple[Callable[..., Any], Sequence[torch.Tensor]]] = {
    "softmax": (lambda x: torch.softmax(x, -1), ROWS),
    "layer norm": (lambda x: torch.nn.functional.layer_norm(x, (33,)), ROWS),
    "gelu of a column mean": (lambda x: torch.nn.functional.gelu(x - x.mean(0)), ROWS),
    "cat": (lambda x: torch.cat((x.t(), x.t() * 2), 0).contiguous(), ROWS),
    "cumulative sum": (lambda x: x.cumsum(1), ROWS),
    "position of the maximum": (lambda x: x.argmax(1), ROWS),
    "embedding": (torch.nn.functional.embedding, [torch.randint(0, 9, (2, 5)), torch.randn(9, 4)]),
    "scatter": (
        lambda x, i: torch.zeros(6, 33).scatter_add(1, i, x),
        [torch.randn(6, 7), torch.randint(0, 33, (6, 7))],
    ),
    "pooling": (lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1), [torch.randn(2, 3, 9, 9)]),
    "half": (lambda x: torch.sigmoid(x) * 2, [torch.randn(5, 5).half()]),
    "integers": (lambda x, y: (x // y) % 5, [torch.randint(-50, 50, (40,)), torch.randint(1, 9, (40,))]),
}


@pytest.mark.sampled(11)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_regions_compute_what_eager_does(case: str, dynamic: bool) -> None:
    function, inputs = CASES[case]
    region = trace_region(function, inputs, dynamic=dynamic)
    backend = NumpyBackend()
    assert [verdict for view in region.views if not isinstance(verdict := backend.judge(view), Supported)] == []
    arguments = [
        inputs[int(item.name[3:].partition("_")[0])] if item.name.startswith("arg") else item.meta.hint
        for item in region.inputs
    ]
    (result,) = backend.compile(region).run(arguments)
    torch.testing.assert_close(result, function(*inputs))


def test_a_type_it_lacks_is_refused() -> None:
    region = trace_region(torch.relu, [torch.randn(4).bfloat16()])
    verdict = NumpyBackend().judge(region.views[0])
    assert isinstance(verdict, Unsupported) and verdict.code == "dtype"


def test_a_template_it_lacks_is_refused() -> None:
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    region = trace_region(lambda x: attention(x, x, x)[0], [torch.randn(1, 2, 3, 4)])
    verdict = NumpyBackend().judge(region.views[0])
    assert verdict == Unsupported("unknown-op", "the target has no template attention")
    assert NumpyBackend().patterns() == ()


def test_every_scalar_operator_has_numpy() -> None:
    # Only targets that draw random numbers as torch does on their hardware meet ``uniform``, and only those that tell
    # what is out of range ``corrected``.
    assert SCALAR_OPS.keys() - OPERATORS.keys() == {"corrected", "round_bfloat16", "to_dtype", "uniform"}


def test_it_takes_part_in_a_mixture() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), torch.nn.GELU())
    value = torch.randn(4, 16)
    with isolated_registry(NumpyBackend(), EagerBackend()):
        rules = [{"match": {"op": "aten.gelu"}, "require": "numpy"}]
        mixture = mixbackend.auto({"backends": ["numpy", "eager"], "rules": rules, "on_failure": "raise"})
        with torch.no_grad():
            torch.testing.assert_close(torch.compile(model, backend=mixture)(value), model(value))
        report = mixture.report().to_dict()
    assert "numpy" in {region["backend"] for graph in report["graphs"] for region in graph["regions"]}
    assert report["events"] == []
