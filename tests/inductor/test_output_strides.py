"""Outputs that passes gave gaps are copied back to where they must lie; products are padded by hand, as for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.contracts.torch_compat import fresh_fake_mode, tracing_apart
from mixbackend.contracts.torch_compat.output_strides import keep_output_strides, output_strides

aten = torch.ops.aten
PAD, SLICE, MM = aten.constant_pad_nd.default, aten.slice.Tensor, aten.mm.default
ROWS, INNER, COLUMNS, PADDED = 12, 8, 5, 8
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
CASES: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "the product": lambda h: (h,),
    "a view of it": lambda h: (aten.view.default(h, [3, 4, COLUMNS]),),
    "both": lambda h: (h, aten.view.default(h, [3, 4, COLUMNS])),
    "a part of a view": lambda h: (aten.slice.Tensor(aten.view.default(h, [3, 4, COLUMNS]), 1, 0, 3),),
    "a turned part": lambda h: (aten.t.default(aten.slice.Tensor(h, 0, 2, 7)),),
    "what is computed of it": lambda h: (aten.relu.default(h), h),
}


def _padded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wide = aten.constant_pad_nd.default(w, [0, PADDED - COLUMNS])
    return aten.slice.Tensor(aten.mm.default(x, wide), 1, 0, COLUMNS)


def _traced(product: Product, case: str, mode: Any) -> tuple[torch.fx.GraphModule, list[Any]]:
    with tracing_apart(mode), mode:
        inputs = [torch.empty(ROWS, INNER), torch.empty(INNER, COLUMNS)]
        function = CASES[case]
        made = make_fx(lambda x, w: function(product(x, w)), tracing_mode="real", _allow_non_fake_inputs=True)(*inputs)
    return made, inputs


def _kept(case: str, exact: list[int] | None = None, views_are_old: bool = False) -> torch.fx.GraphModule:
    mode = fresh_fake_mode()
    expected = output_strides(_traced(aten.mm.default, case, mode)[0])
    graph_module, inputs = _traced(_padded, case, mode)
    assert output_strides(graph_module) != expected
    old = [node for node in graph_module.graph.nodes if views_are_old and node.target not in (PAD, SLICE, MM)]
    with tracing_apart(mode):
        count = list(range(len(expected))) if exact is None else exact
        keep_output_strides(graph_module, inputs, expected, count, old)
    return graph_module


def test_a_view_that_is_old_of_a_product_that_is_not_is_seen_to_have_moved() -> None:
    assert _kept("a view of it", views_are_old=True).graph.find_nodes(op="call_function", target=aten.clone.default)


def test_values_are_not_worked_out_anew_where_all_that_counts_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("torch._inductor.compile_fx.fake_tensor_prop", lambda *given: asked.append(given))
    graph_module, inputs = _traced(aten.mm.default, "both", fresh_fake_mode())
    keep_output_strides(graph_module, inputs, output_strides(graph_module), [0, 1], list(graph_module.graph.nodes))
    assert not asked


@pytest.mark.parametrize("case", CASES)
def test_outputs_lie_where_they_did(case: str) -> None:
    graph_module = _kept(case)
    x, w = torch.randn(ROWS, INNER), torch.randn(INNER, COLUMNS)
    wanted = CASES[case](x @ w)
    results = graph_module(x, w)
    assert [item.stride() for item in results] == [item.stride() for item in wanted]
    assert [item.storage_offset() for item in results] == [
        0 if "turned" in case else o.storage_offset() for o in wanted
    ]
    torch.testing.assert_close(results, wanted)
    assert output_strides(graph_module) == [item.stride() for item in wanted]


def test_outputs_that_share_memory_share_their_copy() -> None:
    assert len(_kept("both").graph.find_nodes(op="call_function", target=aten.clone.default)) == 1


def test_nothing_is_copied_for_outputs_whose_strides_do_not_count() -> None:
    assert not _kept("both", exact=[]).graph.find_nodes(op="call_function", target=aten.clone.default)


def test_an_output_that_is_an_input_stays_one() -> None:
    mode = fresh_fake_mode()
    with tracing_apart(mode), mode:
        x = torch.empty(4, 6)
        graph_module = make_fx(lambda x: (aten.t.default(x),), tracing_mode="real", _allow_non_fake_inputs=True)(x)
    with tracing_apart(mode):
        keep_output_strides(graph_module, [x], [(1, 7)], [0])
    assert not graph_module.graph.find_nodes(op="call_function", target=aten.clone.default)
