"""What one op becomes on a level, as ops to be judged."""

from __future__ import annotations

import pytest
import torch

from mixbackend.backends.common.decomposed import decomposed_views
from mixbackend.contracts import OpView, TensorMeta
from mixbackend.graph.trace import trace_graph

aten = torch.ops.aten


def view_of(function, inputs, op: str, dynamic: bool = False) -> OpView:
    _, graph = trace_graph(function, inputs, dynamic=dynamic)
    return graph.view(next(node.name for node in graph.nodes if node.op == op))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_normalisation_becomes_its_arithmetic(dynamic):
    inputs = [torch.randn(3, 8), torch.randn(8)]
    view = view_of(
        lambda x, w: aten.native_layer_norm(x, [x.shape[1]], w, None, 1e-5)[0],
        inputs,
        "aten.native_layer_norm.default",
        dynamic,
    )
    pieces = decomposed_views(view, "inductor")
    assert pieces is not None
    assert {"aten.var_mean.correction", "aten.rsqrt.default", "aten.mul.Tensor"} <= {piece.op for piece in pieces}
    assert all(isinstance(meta, TensorMeta) for piece in pieces for meta in piece.output_tensors)
    assert all(piece.phase == view.phase for piece in pieces)


def test_an_op_that_stays_whole_has_no_pieces():
    view = view_of(lambda x: aten.relu(x), [torch.randn(3)], "aten.relu.default")
    assert decomposed_views(view, "none") is None
    assert decomposed_views(view, "core_aten") is None


def test_getitem_and_random_ops_have_no_pieces():
    function = lambda x: aten.native_dropout(x, 0.5, True)[0]  # noqa: E731
    assert decomposed_views(view_of(function, [torch.randn(3)], "aten.native_dropout.default"), "inductor") is None
    assert decomposed_views(view_of(function, [torch.randn(3)], "getitem"), "inductor") is None


def test_equal_signatures_are_traced_once():
    first = view_of(lambda x: aten.silu(x), [torch.randn(5, 7)], "aten.silu.default")
    second = view_of(lambda x: aten.silu(aten.add(x, 1)), [torch.randn(5, 7)], "aten.silu.default")
    assert first.node.arguments != second.node.arguments
    assert decomposed_views(first, "inductor") is decomposed_views(second, "inductor")


def test_arguments_are_passed_by_schema_name():
    view = view_of(
        lambda x, y: aten.addcmul(x, x, y, value=0.5), [torch.randn(4), torch.randn(4)], "aten.addcmul.default"
    )
    pieces = decomposed_views(view, "prims")
    assert pieces is not None
    assert any(0.5 in [value for _, value in piece.node.arguments] for piece in pieces)
