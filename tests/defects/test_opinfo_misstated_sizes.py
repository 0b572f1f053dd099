"""A result whose size depends on values, traced with a known size, is never read behind its end."""

from __future__ import annotations

import operator

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode

import mixbackend


def graph_of_unique() -> torch.fx.GraphModule:
    """``x.index_select(0, unique(places)).sum()``, traced with as many rows as there are places."""
    graph = torch.fx.Graph()
    x, places = graph.placeholder("x"), graph.placeholder("places")
    unique = graph.call_function(torch.ops.aten._unique.default, (places,), {"sorted": False})
    first = graph.call_function(operator.getitem, (unique, 0))
    rows = graph.call_function(torch.ops.aten.index_select.default, (x, 0, first))
    total = graph.call_function(torch.ops.aten.sum.default, (rows,))
    graph.output((total,))
    with FakeTensorMode():
        known = {
            x: torch.empty(5, 4),
            places: torch.empty(64, dtype=torch.int64),
            unique: (torch.empty(64, dtype=torch.int64), torch.empty(0, dtype=torch.int64)),
            first: torch.empty(64, dtype=torch.int64),
            rows: torch.empty(64, 4),
            total: torch.empty(()),
        }
    for node, value in known.items():
        node.meta["val"] = value
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def test_eager_runs_the_graph() -> None:
    mixture = mixbackend.auto({"backends": ["codegen", "eager"], "verify": {"when": "off"}})
    x, places = torch.randn(5, 4), torch.tensor([0, 1, 2, 1] * 16)
    run = mixture.compile_captured(graph_of_unique(), "inference", {})
    (total,) = run([x, places])
    torch.testing.assert_close(total, x[:3].sum())
    (event,) = mixture.report().events
    assert event.kind == "fallback" and "depends on values" in event.detail


def test_parts_of_an_unsafe_split_share_memory_as_in_eager() -> None:
    mixture = mixbackend.auto({"backends": ["codegen", "eager"]})
    for split in (lambda x: x.unsafe_chunk(2, 1), lambda x: x.unsafe_split(2, 1), lambda x: (x * 2).unsafe_chunk(2, 1)):
        x = torch.randn(5, 5, 5)
        found, wanted = torch.compile(split, backend=mixture)(x), split(x)
        for mine, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, theirs)
            assert mine.stride() == theirs.stride()
    assert [event for event in mixture.report().events if event.kind == "verify_failed"] == []
