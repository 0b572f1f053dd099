"""``lowered``: ops and regions at a lower level mean what they meant, on every size, and say their level."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mixbackend.compile.replay import make_inputs
from mixbackend.contracts import LEVELS, LoweringError, OpTag, lowered, op_lowering, operators_of
from mixbackend.contracts.region_text import read_region_text
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten
LOWER = LEVELS[1:]


def layer(x, weight, bias, scale):
    normal = aten.native_layer_norm(x, [x.shape[-1]], scale, scale, 1e-5)[0]
    hidden = aten.addmm(bias, aten.reshape(normal, [x.shape[0] * x.shape[1], x.shape[2]]), aten.t(weight))
    wide = aten.gelu(aten.reshape(hidden, [x.shape[0], x.shape[1], weight.shape[0]]))
    left, right = aten.split(wide, wide.shape[-1] // 2, -1)
    return aten._softmax(left, -1, False) * right, aten.detach(x), aten.constant_pad_nd(wide, [1, 2], 0.5)


def layer_inputs(batch=2, length=5, width=16, hidden=24):
    return [torch.randn(batch, length, width), torch.randn(hidden, width), torch.randn(hidden), torch.randn(width)]


def _assert_same(low, region, inputs):
    expected = region.graph_module.forward(*inputs)
    for mine, eager in zip(low.graph_module.forward(*inputs), expected, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("level", LOWER)
def test_a_region_keeps_its_boundary_and_its_meaning(level, dynamic):
    region = trace_region(layer, layer_inputs(), dynamic=dynamic)
    low = lowered(region, level)
    assert (low.inputs, low.level, low.phase, low.id) == (region.inputs, level, region.phase, region.id)
    assert [item.meta for item in low.outputs] == [item.meta for item in region.outputs]
    assert [item.name for item in low.outputs] == [item.name for item in region.outputs]
    assert {view.op for view in low.views} - {"getitem"} <= operators_of(level)
    assert [node.name for node in low.graph_module.graph.find_nodes(op="placeholder")] == [i.name for i in low.inputs]
    _assert_same(low, region, make_inputs(region))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", LOWER)
def test_a_dynamic_region_serves_other_sizes(level):
    region = trace_region(layer, layer_inputs(), dynamic=True)
    low = lowered(region, level)
    assert low.preconditions == ()
    for sizes in ((3, 7, 8, 4), (2, 2, 6, 10)):
        _assert_same(low, region, make_inputs(trace_region(layer, layer_inputs(*sizes), dynamic=True)))


def test_no_guard_is_added_to_the_captured_graph():
    region = trace_region(layer, layer_inputs(), dynamic=True)
    placeholder = next(iter(region.graph_module.graph.find_nodes(op="placeholder")))
    ambient = placeholder.meta["val"].fake_mode.shape_env
    before = len(ambient.guards)
    low = lowered(region, "prims")
    assert len(ambient.guards) == before
    assert low.text == lowered(region, "prims").text


@pytest.mark.parametrize("judged_first", [False, True])
def test_what_a_decomposition_assumes_is_a_precondition(monkeypatch, judged_first):
    def assuming(x):
        return aten.mul.Tensor(x, 2) if x.shape[0] < 10 else aten.mul.Tensor(x, 3)

    table = {**op_lowering.decompositions("prims"), aten.celu.default: assuming}
    monkeypatch.setattr(op_lowering, "decompositions", lambda level: table)
    # Sizes of its own: what was lowered is known from then on.
    region = trace_region(lambda x: aten.celu(x), [torch.randn(6, 47 if judged_first else 53)], dynamic=True)
    if judged_first:
        assert lowered(region.views[0], "prims")
    (condition,) = lowered(region, "prims").preconditions
    (size,) = condition.size.expression.free_symbols
    assert size == region.inputs[0].meta.shape[0].expression
    holds = [condition.holds(int(condition.size.expression.subs({size: number}))) for number in (6, 9, 10, 11)]
    assert holds == [True, True, False, False]


@pytest.mark.parametrize("level", LOWER)
def test_text_and_key_say_the_level(level):
    region = trace_region(lambda x: aten.mm(x, x), [torch.randn(3, 3)])
    low = lowered(region, level)
    # The op is in every list; the region is another one for all that.
    assert [view.op for view in low.views] == [view.op for view in region.views]
    assert len({region.key, low.key, *(lowered(region, other).key for other in LOWER)}) == len(LEVELS)
    again = read_region_text(low.text)
    assert (again.key, again.level) == (low.key, level)
    assert read_region_text(region.text).level == "aten"


def test_equal_regions_have_equal_texts():
    def piece(x, y):
        return aten._softmax(aten.gelu(x), -1, False) + aten.relu(y)

    inputs = [torch.randn(4, 6), torch.randn(6)]
    first, second = (lowered(trace_region(piece, inputs, dynamic=True), "prims") for _ in range(2))
    assert first.key == second.key and first.text == second.text


def test_an_op_becomes_ops_that_read_its_inputs():
    region = trace_region(lambda x: aten.gelu(x), [torch.randn(4)])
    (view,) = region.views
    steps = lowered(view, "prims")
    assert [step.op.split(".")[1] for step in steps] == ["mul", "mul", "erf", "add", "mul"]
    assert steps[0].input_tensors == view.input_tensors and steps[-1].outputs == view.outputs
    assert steps[0].inputs[0].name == view.inputs[0].name
    assert lowered(view, "aten") == lowered(view, "core_aten") == (view,)


def test_sizes_of_an_op_stay_its_own():
    (view,) = trace_region(lambda x: aten.silu(x), [torch.randn(4, 6)], dynamic=True).views
    for step in lowered(view, "prims"):
        assert [meta.shape for meta in step.output_tensors] == [meta.shape for meta in view.output_tensors]


def test_equal_ops_are_lowered_once(monkeypatch):
    count = 0
    make_fx = op_lowering.make_fx

    def counted(*given, **named):
        nonlocal count
        count += 1
        return make_fx(*given, **named)

    monkeypatch.setattr(op_lowering, "make_fx", counted)
    region = trace_region(lambda x: aten.silu(aten.silu(aten.silu(x))) + aten.silu(x * 2), [torch.randn(5, 43)])
    lowered(region, "prims")
    assert count == 3  # silu, add, mul
    assert [len(lowered(view, "prims")) for view in region.views] and count == 3


@pytest.mark.parametrize(("left", "right"), [(1, 1.0), (0.0, -0.0), (True, 1)])
def test_ops_with_other_numbers_are_other_ops(left, right):
    steps = [
        lowered(trace_region(lambda x, value=value: aten.full_like(x, value), [torch.randn(3)]).views[0], "prims")
        for value in (left, right)
    ]
    first, second = (repr(dict(step[-1].node.arguments)["fill_value"]) for step in steps)
    assert (first, second) == (repr(left), repr(right))


SPECIAL = {
    "draws from torch's random stream": lambda x: aten.bernoulli(x),
    "writes into an input": lambda x: aten.copy_(x, x * 2),
    "returns uninitialised memory": lambda x: aten.empty_like(x),
    "reads memory by position": lambda x: aten.as_strided(x, [2], [1]),
    "depends on values": lambda x: aten.nonzero(x),
}


@pytest.mark.parametrize("told", SPECIAL)
@pytest.mark.parametrize("level", LOWER)
def test_what_would_mean_something_else_is_refused(told, level):
    view = trace_region(SPECIAL[told], [torch.rand(4)]).views[-1]
    with pytest.raises(LoweringError, match=told):
        lowered(view, level)


def test_writes_and_patterns_stay_whole_in_a_region():
    region = trace_region(lambda x, y: aten.copy_(x, aten.silu(aten.gelu(y))), [torch.randn(4), torch.randn(4)])
    gelu = next(view.node.name for view in region.views if view.op == "aten.gelu.default")
    low = lowered(replace(region, matches=(("mine", (gelu,)),)), "prims")
    names = [view.op for view in low.views]
    assert names[0] == "aten.gelu.default" and names[-1] == "aten.copy_.default" and "aten.silu.default" not in names
    assert low.written == region.written and low.matches[0][1][0] == low.views[0].node.name
    assert any(OpTag.MUTATES in view.node.tags for view in low.views)


@pytest.mark.parametrize("level", LOWER)
def test_an_op_that_hands_its_input_on_is_an_op_still(level):
    region = trace_region(lambda x: aten.detach(x), [torch.randn(3)])
    low = lowered(region, level)
    assert len(low.views) == 1 and low.outputs[0].name not in {item.name for item in low.inputs}


def test_a_lowered_region_is_not_lowered_again():
    low = lowered(trace_region(lambda x: aten.gelu(x), [torch.randn(3)]), "core_aten")
    assert lowered(low, "core_aten") is low
    with pytest.raises(LoweringError, match="of level core_aten already"):
        lowered(low, "prims")
    with pytest.raises(ValueError, match="no level"):
        lowered(low, "linalg")  # type: ignore[call-overload]


def _attention(q, k, v, mask):
    return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, mask is None, attn_mask=mask)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("kind", ["causal", "mask", "nothing seen"])
@pytest.mark.parametrize("level", LOWER)
def test_attention_written_out_is_what_the_kernel_computes(level, kind, heads):
    q, k, v = torch.randn(2, 4, 6, 8), torch.randn(2, heads, 6, 8), torch.randn(2, heads, 6, 8)
    mask = None if kind == "causal" else torch.randn(6, 6)
    if kind == "nothing seen":
        mask[2] = -torch.inf

    def both(q, k, v, grad, *given):
        out, logarithm = _attention(q, k, v, given[0] if given else None)
        named = {"attn_mask": given[0]} if given else {}
        if heads != 4:
            return out, logarithm
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return out, logarithm, *backward(grad, q, k, v, out, logarithm, 0.0, not given, **named)

    inputs = [q, k, v, torch.randn(2, 4, 6, 8), *([] if mask is None else [mask])]
    inputs = inputs if heads == 4 else [*inputs[:3], inputs[3], *inputs[4:]]
    region = trace_region(both, inputs)
    given = {f"arg{place}_1": value for place, value in enumerate(inputs)}
    _assert_same(lowered(region, level), region, [given[item.name] for item in region.inputs])
