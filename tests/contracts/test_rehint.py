"""A graph described at other sizes: hints follow, everything else stays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sympy
import torch

from mixbackend.contracts import GraphInput, InputRole, NodeRef, OpGraph, OpNode, SymbolicSize, TensorMeta
from mixbackend.contracts.rehint import ImpossibleSizesError, symbols_of, with_hints
from mixbackend.contracts.torch_compat import symbolic_functions

ROWS = sympy.Symbol("s0", positive=True, integer=True)
COLUMNS = sympy.Symbol("s1", positive=True, integer=True)
HALF = symbolic_functions()["FloorDiv"](ROWS, 2)


def tensor(*sizes: int | SymbolicSize) -> TensorMeta:
    steps: list[int | SymbolicSize] = [1]
    for size in reversed(sizes[1:]):
        last = steps[0]
        factors = [item.expression if isinstance(item, SymbolicSize) else item for item in (size, last)]
        hints = [item.hint if isinstance(item, SymbolicSize) else item for item in (size, last)]
        product = factors[0] * factors[1]
        whole = isinstance(product, int)
        steps.insert(0, product if whole else SymbolicSize(product, (hints[0] or 0) * (hints[1] or 0)))
    return TensorMeta(sizes, tuple(steps), torch.float32, torch.device("cpu"))


def graph(rows: int, columns: int) -> OpGraph:
    s0, s1 = SymbolicSize(ROWS, rows, 2, 512), SymbolicSize(COLUMNS, columns, 2)
    half, left = SymbolicSize(HALF, rows // 2), SymbolicSize(ROWS - 4, rows - 4)
    inputs = (
        GraphInput("arg0", s0, InputRole.SYMBOL),
        GraphInput("arg1", tensor(s0, s1), InputRole.ACTIVATION),
    )
    sliced = OpNode("slice", "aten.slice.Tensor", (("self", NodeRef("arg1")), ("end", left)), (tensor(left, s1),))
    pooled = OpNode("pool", "aten.view.default", (("self", NodeRef("slice")), ("size", (half, 4))), (tensor(half, 4),))
    return OpGraph("g", "inference", inputs, (sliced, pooled), ("pool",))


def test_derived_sizes_follow() -> None:
    assert with_hints(graph(8, 3), {ROWS: 20}) == graph(20, 3)
    assert with_hints(graph(8, 3), {ROWS: 20, COLUMNS: 7}) == graph(20, 7)


def test_nothing_changes_without_hints_and_back_again() -> None:
    first = graph(8, 3)
    assert with_hints(first, {}) is first
    assert with_hints(with_hints(first, {ROWS: 30}), {ROWS: 8}) == first


def test_the_graph_that_was_given_stays() -> None:
    first = graph(8, 3)
    with_hints(first, {ROWS: 20})
    assert first == graph(8, 3)


@pytest.mark.parametrize("rows", [3, 513, 1])
def test_sizes_that_no_run_can_have_are_refused(rows: int) -> None:
    """Three rows leave less than nothing behind the slice; the others are out of range."""
    with pytest.raises(ImpossibleSizesError, match="would be"):
        with_hints(graph(8, 3), {ROWS: rows})


def test_no_run_divides_a_size_by_nothing() -> None:
    """Torch divides strides by the number of windows of a pooling, and too few pixels have none."""
    floor = symbolic_functions()["FloorDiv"]
    step = SymbolicSize(floor(COLUMNS, floor(ROWS - 2, 4)), 3)
    first = graph(8, 3)
    described = replace(first, inputs=(*first.inputs, GraphInput("arg2", step, InputRole.SYMBOL)))
    assert with_hints(described, {ROWS: 10, COLUMNS: 5}).inputs[2].meta == replace(step, hint=2)
    with pytest.raises(ImpossibleSizesError, match="divided by 0"):
        with_hints(described, {ROWS: 5})


def test_sizes_that_depend_on_data_keep_having_no_hint() -> None:
    unknown = SymbolicSize(sympy.Symbol("u0", integer=True), None)
    both = SymbolicSize(unknown.expression * ROWS, None)
    meta = TensorMeta((both, unknown), (1, 1), torch.float32, torch.device("cpu"))
    rows = GraphInput("arg0", SymbolicSize(ROWS, 8), InputRole.SYMBOL)
    described = OpGraph("g", "inference", (rows, GraphInput("arg1", meta, InputRole.ACTIVATION)), (), ())
    assert with_hints(described, {ROWS: 9}).inputs[1] == described.inputs[1]
    assert set(symbols_of(described)) == {ROWS, unknown.expression}


def test_symbols_are_those_that_show_by_themselves() -> None:
    assert {symbol: size.hint for symbol, size in symbols_of(graph(8, 3)).items()} == {ROWS: 8, COLUMNS: 3}
