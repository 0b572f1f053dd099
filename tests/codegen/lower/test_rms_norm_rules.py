"""RMS norm as one op, which only some devices have: its rules against the formula in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.ir.stages import GraphOutput, StageGraph
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.table import RULES
from mixbackend.backends.codegen.lower.view import contiguous_strides
from mixbackend.contracts import ErrorBudget, NodeRef, OpView, TensorMeta
from mixbackend.contracts.numerics import find_deviation
from mixbackend.contracts.ops import InputRole, InputView, OpNode

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FORWARD, BACKWARD = "aten._fused_rms_norm.default", "aten._fused_rms_norm_backward.default"


def values(*sizes: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random numbers."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).add(0.3).to(dtype)


def meta_of(tensor: torch.Tensor) -> TensorMeta:
    """What is known of a tensor."""
    return TensorMeta(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)


def run(op: str, arguments: dict[str, Any], like: list[torch.Tensor]) -> list[torch.Tensor]:
    """Lower one op and interpret its stages.

    Args:
        like: tensors of the sizes and types of the results.
    """
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    inputs = tuple(InputView(name, meta_of(value), InputRole.ACTIVATION) for name, value in tensors.items())
    given = tuple((name, NodeRef(name) if name in tensors else value) for name, value in arguments.items())
    node = OpNode("norm", op, given, tuple(map(meta_of, like)))
    lowering = Lowering()
    declared = tuple(lowering.input(name, meta_of(value)) for name, value in tensors.items())
    lowering.lower(OpView(node, inputs, "forward", "norm"))
    outputs = []
    for result in lowering.value("norm"):
        lowering.map(result.sizes, result.dtype, result.at)
        strides = contiguous_strides(result.sizes)
        outputs.append(GraphOutput(f"out{len(outputs)}", lowering.stages[-1].target, strides))
    graph = StageGraph(declared, tuple(lowering.types.items()), tuple(lowering.stages), tuple(outputs))
    return list(interpret_stages(graph, list(tensors.values())))


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula, in the wider of the tensor's type and float32."""
    wide = x if x.dtype == torch.float64 else x.float()
    root = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    result = wide * root if weight is None else wide * root * weight.to(wide.dtype)
    return result.to(x.dtype), root.to(x.dtype)


def assert_close(results: list[torch.Tensor], eager: list[torch.Tensor], exact: list[torch.Tensor]) -> None:
    """No farther from float64 than the formula in the tensor's type."""
    for place, triple in enumerate(zip(results, eager, exact, strict=True)):
        deviation = find_deviation(place, *triple, ErrorBudget())
        assert deviation is None, str(deviation)


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("weighted", [False, True])
def test_forward(dtype, weighted):
    x, weight = values(5, 8, dtype=dtype), values(8, dtype=dtype, seed=1) if weighted else None
    eager = list(rms_norm(x, weight, 1e-5))
    exact = rms_norm(x.double(), None if weight is None else weight.double(), 1e-5)
    arguments = {"input": x, "normalized_shape": (8,), "weight": weight, "eps": 1e-5}
    assert_close(run(FORWARD, arguments, eager), eager, list(exact))


@pytest.mark.parametrize("dtype", FLOATING)
def test_backward(dtype):
    x, weight, grad = (values(*sizes, dtype=dtype, seed=len(sizes)) for sizes in ((5, 8), (8,), (5, 8)))
    root = rms_norm(x, weight, 1e-5)[1]

    def gradients(*tensors: torch.Tensor) -> list[torch.Tensor]:
        leaves = [tensor.clone().requires_grad_() for tensor in tensors[:2]]
        return list(torch.autograd.grad(rms_norm(*leaves, 1e-5)[0], leaves, tensors[2]))

    eager, exact = gradients(x, weight, grad), gradients(x.double(), weight.double(), grad.double())
    arguments = {
        "grad_out": grad,
        "input": x,
        "normalized_shape": (8,),
        "rstd": root,
        "weight": weight,
        "output_mask": (True, True),
    }
    assert_close(run(BACKWARD, arguments, eager), eager, exact)


def test_default_epsilon():
    x = torch.zeros(2, 4)
    arguments = {"input": x, "normalized_shape": (4,), "weight": None, "eps": None}
    result, root = run(FORWARD, arguments, [x, x[:, :1]])
    assert torch.equal(result, x)
    assert torch.equal(root, torch.full((2, 1), torch.finfo(torch.float32).eps).rsqrt())
    assert {FORWARD, BACKWARD} <= set(RULES.names())
