"""torch's own operator samples: whatever is claimed must be right."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from op_samples import function_of

from mixbackend.contracts import OpGraph, Unsupported
from mixbackend.contracts.torch_compat import operator_database
from mixbackend.graph.trace import trace_graph

_FOREIGN = ("linalg.", "fft.", "masked.", "signal.", "sparse.", "special.", "_refs", "__r")
_SAMPLES = {torch.float32: 2, torch.int64: 1, torch.bool: 1}
_PARTS = {torch.float32: 4, torch.int64: 1, torch.bool: 1}
"""Tests per type, so that several workers can share them."""


def _operators(dtype: torch.dtype) -> list[Any]:
    return [
        info
        for info in operator_database()
        if info.supports_dtype(dtype, "cpu") and not info.name.startswith(_FOREIGN) and not info.is_factory_function
    ]


def _claimed(workbench: Any, function: Callable[..., Any], tensors: list[torch.Tensor]) -> tuple[Any, OpGraph] | None:
    """A sample as a graph, if torch can trace it and the backend takes every op."""
    try:
        module, graph = trace_graph(function, tensors)
    except Exception:  # the sample reads values or makes random numbers: no graph, nothing to claim
        return None
    computed = {node.name for node in graph.placed_nodes}
    if not computed or not set(graph.outputs) <= computed or len(graph.inputs) != len(tensors):
        return None
    if any(node.is_symbolic for node in graph.nodes):
        return None
    verdicts = (workbench.backend.judge(graph.view(name)) for name in computed)
    return None if any(isinstance(verdict, Unsupported) for verdict in verdicts) else (module, graph)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("dtype", "part"), [(dtype, part) for dtype in _PARTS for part in range(_PARTS[dtype])])
def test_claims_hold_for_torchs_samples(workbench, dtype, part):
    wrong: list[str] = []
    held = 0
    for info in _operators(dtype)[part :: _PARTS[dtype]]:
        for sample in itertools.islice(info.sample_inputs("cpu", dtype), _SAMPLES[dtype]):
            function, tensors = function_of(info, sample)
            traced = _claimed(workbench, function, tensors)
            if traced is None:
                continue
            held += 1
            try:
                workbench.check(function, *tensors, built=workbench.built(*traced))
            except Exception as error:  # collected: one report of all wrong claims
                wrong.append(f"{info.full_name}: {type(error).__name__} {str(error)[:300]}")
    assert not wrong, "\n".join(wrong)
    assert held > 80 // _PARTS[dtype]
