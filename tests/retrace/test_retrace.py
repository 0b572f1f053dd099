"""Re-tracing keeps what a region computes and adds no guard to anybody's symbols."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import sympy
import torch

from mixbackend.backends.common.retrace import Retraced, retrace_apart
from mixbackend.compile.replay import make_inputs
from mixbackend.contracts import Condition, Plan, PlannedRegion, Region, SymbolicSize, fresh_sizes
from mixbackend.contracts.torch_compat import symbolic_expression
from mixbackend.graph.regions import cut_regions
from mixbackend.graph.trace import trace_graph, trace_region

aten = torch.ops.aten
LEVELS = ("none", "core_aten", "prims", "inductor")


def layer(x, weight, bias, scale):
    normal = aten.native_layer_norm(x, [x.shape[-1]], scale, scale, 1e-5)[0]
    flat = aten.reshape(normal, [x.shape[0] * x.shape[1], x.shape[2]])
    hidden = aten.addmm(bias, flat, aten.t(weight))
    return aten.gelu(aten.reshape(hidden, [x.shape[0], x.shape[1], weight.shape[0]])), aten.detach(x)


def layer_inputs(batch=2, length=5, width=16, hidden=24):
    return [torch.randn(batch, length, width), torch.randn(hidden, width), torch.randn(hidden), torch.randn(width)]


def assert_equal(region: Region, traced: Retraced, inputs: list) -> None:
    expected = region.graph_module.forward(*inputs)
    for mine, eager in zip(traced.graph_module.forward(*traced.arguments(inputs)), expected, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-5)
        assert mine.shape == eager.shape


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("level", "dynamic"), list(itertools.product(LEVELS, (False, True))))
def test_every_level_computes_the_same(level, dynamic):
    region = trace_region(layer, layer_inputs(), dynamic=dynamic)
    traced = retrace_apart(region, level)
    assert_equal(region, traced, make_inputs(region))
    assert traced.preconditions() == ()
    names = {str(node.target) for node in traced.graph_module.graph.nodes}
    assert ("aten.native_layer_norm.default" in names) == (level in ("none", "core_aten"))


def test_other_sizes_than_the_traced_ones():
    region = trace_region(layer, layer_inputs(), dynamic=True)
    traced = retrace_apart(region, "inductor")
    for shape in ((3, 7, 8, 4), (2, 2, 2, 2)):
        assert_equal(region, traced, make_inputs(trace_region(layer, layer_inputs(*shape), dynamic=True)))


def test_strides_are_told_in_the_regions_sizes():
    region = trace_region(lambda x: (aten.clone(x), aten.add(x, 1)), [torch.randn(4, 6).t()], dynamic=True)
    wanted = tuple(
        tuple(step.expression if isinstance(step, SymbolicSize) else step for step in output.meta.stride)
        for output in region.outputs
    )
    assert retrace_apart(region, "inductor").output_strides() == wanted


def halves_and_zeros(x):
    return aten.split(x, x.shape[0] - 3)[0], aten.zeros_like(x)


@pytest.mark.parametrize(
    "inputs",
    [[torch.randn(9, 4)], [torch.randn(9, 4).t()], [torch.randn(9, 8)[:, ::2]]],
    ids=["dense", "transposed", "every second column"],
)
def test_every_symbol_is_a_placeholder(inputs):
    region = trace_region(halves_and_zeros, inputs, dynamic=True)
    traced = retrace_apart(region, "inductor")
    nodes = list(traced.graph_module.graph.nodes)
    symbols = [symbolic_expression(item) for item in traced.inputs if isinstance(item, torch.SymInt)]
    assert set(traced.originals) <= set(symbols) and traced.originals
    # A pass that inserts something at the top of the graph finds all symbols there.
    assert all(node.op == "placeholder" for node in nodes[: len(traced.inputs)])
    assert not any("sym_size" in str(node.target) or "sym_stride" in str(node.target) for node in nodes)
    assert_equal(region, traced, make_inputs(region))


@pytest.mark.parametrize("pad", [[-1, 1], [-1, -1], [0, -2, -1, 0]], ids=str)
def test_operators_whose_kernels_know_no_symbols(pad):
    region = trace_region(lambda x: aten.constant_pad_nd(x, pad, 0.5), [torch.randn(5, 7)], dynamic=True)
    assert_equal(region, retrace_apart(region, "inductor"), make_inputs(region))


def test_a_decomposition_that_returns_its_input_is_copied():
    region = trace_region(lambda x: aten._to_copy(x, dtype=torch.float32), [torch.randn(3)])
    for level in LEVELS:
        graph_module, x = retrace_apart(region, level).graph_module, torch.randn(3)
        assert graph_module.forward(x)[0].data_ptr() != x.data_ptr()


def test_compiler_assumptions_become_conditions_and_no_guards():
    region = trace_region(lambda x: aten.add(x, 1), [torch.randn(6, 8)], dynamic=True)
    ambient = next(iter(region.graph_module.graph.find_nodes(op="placeholder"))).meta["val"].fake_mode.shape_env
    before = len(ambient.guards)
    traced = retrace_apart(region, "none")
    rows, columns = traced.inputs[-1].shape
    first, second = (size.expression for size in region.inputs[0].meta.shape)
    assert bool(rows <= 100)
    assert bool(rows + 2 == columns)
    assert bool(rows % 8 != 0)
    conditions = traced.preconditions()
    for condition in conditions:
        assert condition.size.expression.free_symbols <= {first, second}
    holds = lambda a, b: all(c.holds(int(c.size.expression.subs({first: a, second: b}))) for c in conditions)  # noqa: E731
    assert holds(6, 8) and holds(20, 22)
    assert not holds(6, 9) and not holds(101, 103) and not holds(16, 18)
    assert len(ambient.guards) == before
    assert all(isinstance(item, Condition) for item in conditions)


def test_an_assumption_that_no_condition_states_is_an_error(monkeypatch):
    traced = retrace_apart(trace_region(lambda x: aten.add(x, 1), [torch.randn(6)], dynamic=True), "none")
    symbol = symbolic_expression(traced.inputs[-1].shape[0])
    monkeypatch.setattr(fresh_sizes, "assumptions", lambda mode, bounds: [sympy.Or(symbol < 3, symbol > 5)])
    with pytest.raises(ValueError, match="cannot be stated"):
        traced.preconditions()


def test_sizes_whose_symbols_do_not_enter_get_a_symbol_of_their_own():
    def tail(x):
        return aten.mul(aten.reshape(x, [x.shape[0] * x.shape[1]]), 2.0)

    graph_module, graph = trace_graph(tail, [torch.randn(3, 4)], dynamic=True)

    names = [node.name for node in graph.placed_nodes]
    regions = (PlannedRegion("r0", "a", (names[0],)), PlannedRegion("r1", "b", (names[1],)))
    product = cut_regions(graph_module, graph, Plan(graph.id, graph.phase, True, regions))[1].region
    # The cut hands over what the size is made of; a region may come without.
    _, told = product.graph_module.graph.find_nodes(op="placeholder")
    product.graph_module.graph.erase_node(told)
    product.graph_module.recompile()
    traced = retrace_apart(replace(product, inputs=product.inputs[:1]), "inductor")
    assert isinstance(symbolic_expression(traced.inputs[-1].shape[0]), sympy.Symbol)
    x = torch.randn(30)
    torch.testing.assert_close(traced.graph_module.forward(*traced.arguments([x]))[0], x * 2)


def test_an_unknown_level_is_an_error():
    region = trace_region(lambda x: aten.add(x, 1), [torch.randn(2)])
    with pytest.raises(ValueError, match="not a decomposition level"):
        retrace_apart(region, "everything")  # type: ignore[arg-type]
