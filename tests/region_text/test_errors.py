"""Texts that cannot be read, and regions that have no text."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import draws

from mixbackend.contracts import RegionTextError
from mixbackend.contracts.region_text import CONSTANT_LIMIT_BYTES, read_graph_text, read_region_text

from .conftest import trace, write

aten = torch.ops.aten

GOOD = """mixbackend-region 1 inference
%0 = input(activation, tensor(float32, [s0, 4], [4, 1], "cpu"))
%1 = aten.mul.Tensor(self=%0, other=2.5) -> tensor(float32, [s0, 4], [4, 1], "cpu")
return(%1, tensor(float32, [s0, 4], [4, 1], "cpu"), alias=none, exact=true)
symbol(s0, size, 2, none)
# hint s0 6
"""

DAMAGED = [
    ("region 1 inference", "mixbackend-region 1 inference", 1),
    ("mixbackend-region 1 sometimes", "mixbackend-region 1 inference", 1),
    ("mixbackend-region 2 inference", "mixbackend-region 1 inference", 1),
    ("mixbackend-region 1 inference repeatable", "mixbackend-region 1 inference", 1),
    ("mixbackend-region 1 deterministic", "mixbackend-region 1 inference", 1),
    ("%1 = input", "%0 = input", 2),
    ("input(tourist", "input(activation", 2),
    ("tensor(float31", "tensor(float32", 2),
    ('"moon")\n%1', '"cpu"))\n%1', 2),
    ("[s7, 4]", "[s0, 4]", 2),
    ("[-3, 4]", "[s0, 4]", 2),
    ("aten.mul.Nothing", "aten.mul.Tensor", 3),
    ("load_library.__func__.__globals__", "aten.mul.Tensor", 3),
    ("symbolic.eval", "aten.mul.Tensor", 3),
    ("self=%1", "self=%0", 3),
    ("self=%99", "self=%0", 3),
    ("other=2.5, other=1", "other=2.5", 3),
    ("another=2.5", "other=2.5", 3),
    ("self=%0)", "self=%0, other=2.5)", 3),
    ("other=$(id)", "other=2.5", 3),
    ('other="\\x"', "other=2.5", 3),
    ("other=word", "other=2.5", 3),
    ("other=dtype(float99)", "other=2.5", 3),
    ("other=" + "[" * 90 + "]" * 90, "other=2.5", 3),
    (") => tensor", ") -> tensor", 3),
    ("alias=3", "alias=none", 4),
    ("exact=1", "exact=true", 4),
    ("return(%9", "return(%1", 4),
    ("symbol(s0, size, 2, none) extra", "symbol(s0, size, 2, none)", 5),
    ("symbol(s0, huge, 2, none)", "symbol(s0, size, 2, none)", 5),
    ("# hint s0 x", "# hint s0 6", 6),
]


def test_the_good_text_is_good() -> None:
    assert read_region_text(GOOD).dynamic


@pytest.mark.parametrize(("bad", "good", "line"), DAMAGED)
def test_damage_is_reported_with_its_line(bad: str, good: str, line: int) -> None:
    damaged = GOOD.replace(good, bad, 1)
    assert damaged != GOOD
    with pytest.raises(RegionTextError) as caught:
        read_region_text(damaged)
    assert f"line {line}" in str(caught.value)


@pytest.mark.parametrize("line", ["offset(3, 1)", "offset(%1, [1, 2])", "offset(%9, 1)", "offset(%1)", "return(%1)"])
def test_bad_lines_of_graphs_are_reported(line: str) -> None:
    graph = [item for item in GOOD.splitlines() if not item.startswith("return")]
    read_graph_text("\n".join([*graph, "offset(%1, 8)"]), ("x", "y"))
    with pytest.raises(RegionTextError, match=f"line {len(graph) + 1}"):
        read_graph_text("\n".join([*graph, line]), ("x", "y"))


def test_empty_text() -> None:
    with pytest.raises(RegionTextError, match="line 1"):
        read_region_text("")


def test_bad_constants() -> None:
    template = 'mixbackend-region 1 inference\n%0 = constant(tensor(float32, [2], [1], "cpu"), "{}")\n'
    for data in ("AAAA", "!!!!", "AAAAAAAAAAAAAAA="):
        with pytest.raises(RegionTextError, match="line 2"):
            read_region_text(template.format(data))


@settings(derandomize=True, deadline=None, max_examples=draws(52, 150))
@given(st.integers(0, len(GOOD) - 1), st.text(alphabet='%()[],="ab0.-s\n#', max_size=3), st.integers(0, 4))
def test_random_damage_never_raises_anything_else(position: int, inserted: str, removed: int) -> None:
    damaged = GOOD[:position] + inserted + GOOD[position + removed :]
    try:
        read_region_text(damaged)
    except RegionTextError as error:
        assert "line" in str(error)


def test_large_constants_have_no_text() -> None:
    constant = torch.zeros(CONSTANT_LIMIT_BYTES)
    with pytest.raises(RegionTextError, match="too large"):
        write(trace(lambda x: (aten.add(x, constant),), (torch.randn(1),)))


def test_higher_order_ops_have_no_text() -> None:
    graph_module = trace(
        lambda x: (torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,)),), (torch.randn(3),), dynamic=True
    )
    with pytest.raises(RegionTextError, match=r"GraphModule|higher_order"):
        write(graph_module)


def test_sparse_inputs_have_no_text() -> None:
    graph_module = trace(lambda x: (aten.mul(x, 2),), (torch.randn(3),))
    graph_module.graph.find_nodes(op="placeholder")[0].meta["val"] = torch.eye(3).to_sparse()
    with pytest.raises(RegionTextError, match="layout"):
        write(graph_module)


def test_nodes_without_metadata_have_no_text() -> None:
    graph_module = trace(lambda x: (aten.mul(x, 2),), (torch.randn(3),))
    del graph_module.graph.find_nodes(op="call_function", target=aten.mul.Tensor)[0].meta["val"]
    with pytest.raises(RegionTextError, match="mul"):
        graph = graph_module.graph
        graph.output_node().args = ((graph.find_nodes(op="placeholder")[0],),)
        write(graph_module)
