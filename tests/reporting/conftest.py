"""A small placed graph, made by hand."""

from __future__ import annotations

import pytest
import torch

from mixbackend.contracts import (
    GraphInput,
    InputRole,
    NodeRef,
    OpGraph,
    OpNode,
    Plan,
    PlannedRegion,
    Refusal,
    SymbolicSize,
    TensorMeta,
)
from mixbackend.partitioner.explain import Saving
from mixbackend.reporting import GraphRecord, RegionRecord


def tensor(*shape: int) -> TensorMeta:
    return TensorMeta(shape, tuple(1 for _ in shape), torch.float32, torch.device("cpu"))


def make_graph(graph_id: str = "inference-0") -> OpGraph:
    def node(name: str, op: str, source: str, module: str) -> OpNode:
        return OpNode(name, op, (("self", NodeRef(source)),), (tensor(2, 3),), module, "Linear")

    import sympy

    number = OpNode("size", "symbolic.mul", (), (SymbolicSize(sympy.Symbol("s0") * 2, 8),))
    return OpGraph(
        graph_id,
        "inference",
        (GraphInput("x", tensor(2, 3), InputRole.ACTIVATION),),
        (
            node("mm", "aten.mm.default", "x", "encoder.layer.0.dense"),
            number,
            node("mm_1", "aten.mm.default", "mm", "encoder.layer.1.dense"),
            node("gelu", "aten.gelu.default", "mm_1", "encoder.layer.1"),
            node("add", "aten.add.Tensor", "gelu", ""),
        ),
        ("add",),
    )


def make_record(graph_id: str = "inference-0") -> GraphRecord:
    plan = Plan(
        graph_id,
        "inference",
        False,
        (
            PlannedRegion("r0", "onnxruntime", ("mm", "mm_1", "gelu"), estimated_s=1e-3),
            PlannedRegion("r1", "eager", ("add",), estimated_s=2e-5),
        ),
        (
            Refusal("mm", "inductor", "dtype", "float32 is [red]not[/red] taken"),
            Refusal("mm_1", "inductor", "dtype", "float32 is [red]not[/red] taken"),
            Refusal("gelu", "inductor", "unknown-op"),
            Refusal("add", "onnxruntime", "declined", "<script>alert(1)</script>"),
        ),
        estimated_s=1.02e-3,
        lower_bound_s=1e-3,
        single_backend_s=(("eager", 2.04e-3), ("onnxruntime", 1.53e-3), ("inductor", float("inf"))),
    )
    regions = (
        RegionRecord("r0", measured_s=9e-4, cached=True),
        RegionRecord("r1", reused_from="inference-0/r9", notes=("1 view kept",)),
    )
    saving = Saving("inductor", "unknown-op", "aten.gelu.default", ("gelu",), "", 1e-4)
    return GraphRecord(make_graph(graph_id), plan, regions, (saving,))


@pytest.fixture
def record() -> GraphRecord:
    return make_record()
