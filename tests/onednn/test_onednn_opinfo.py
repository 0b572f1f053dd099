"""torch's own operator samples: whatever is claimed must be right."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from op_samples import function_of

from mixbackend.contracts import Unsupported
from mixbackend.contracts.torch_compat import operator_database
from mixbackend.graph.trace import trace_graph

_LINEAR = (
    "mm addmm matmul bmm linalg.multi_dot nn.functional.linear nn.functional.bilinear einsum tensordot inner outer"
)
_OTHERS = "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d scaled_dot_product_attention"
_NAMES = frozenset(_LINEAR.split()) | {f"nn.functional.{name}" for name in _OTHERS.split()}
_HEAVY = frozenset({"matmul", "convolution", "attention"})


def _claimed(bench: Any, function: Callable[..., Any], tensors: list[torch.Tensor]) -> bool:
    """Whether the backend takes every op of a sample, and one of them is a kernel's."""
    try:
        _, graph = trace_graph(function, tensors)
    except Exception:  # the sample reads values: no graph, nothing to claim
        return False
    views = [graph.view(node.name) for node in graph.placed_nodes]
    if not set(graph.outputs) <= {view.node.name for view in views} or len(graph.inputs) != len(tensors):
        return False
    if not any(view.op_class in _HEAVY for view in views):
        return False
    return not any(isinstance(bench.backend.judge(view), Unsupported) for view in views)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_claims_hold_for_torchs_samples(bench, dtype):
    wrong: list[str] = []
    held: dict[str, int] = {}
    for info in operator_database():
        if info.name not in _NAMES or not info.supports_dtype(dtype, "cpu"):
            continue
        for sample in itertools.islice(info.sample_inputs("cpu", dtype), 4):
            function, tensors = function_of(info, sample)
            if not _claimed(bench, function, tensors):
                continue
            held[info.name] = held.get(info.name, 0) + 1
            try:
                bench.check(function, *tensors, constants=range(1, len(tensors)))
            except Exception as error:  # collected: one report of all wrong claims
                wrong.append(f"{info.name} {[tuple(item.shape) for item in tensors]}: {str(error)[:300]}")
    assert not wrong, "\n".join(wrong)
    assert {"mm", "addmm", "nn.functional.linear", "nn.functional.conv2d", "nn.functional.conv_transpose2d"} <= set(
        held
    )
    assert sum(held.values()) > 25
