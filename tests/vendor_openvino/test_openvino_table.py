"""Every operator of the plug-in's table against eager: a claim that is wrong is found here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from mixbackend_openvino.backend import OpenVinoBackend
from mixbackend_openvino.table import ROWS

from mixbackend.compile.replay import make_inputs
from mixbackend.contracts import Supported, Unsupported
from mixbackend.graph.trace import trace_graph, trace_region

aten = torch.ops.aten
BACKEND = OpenVinoBackend()


def r(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def with_number(name: str) -> Callable[..., Any]:
    return lambda x: getattr(aten, name)(x, 0.25)


X, Y, ROW, B = r(2, 3, 4), r(2, 3, 4), r(4), r(3, 4) > 0
IMAGE = r(2, 6, 9, 7)

Sample = tuple[Callable[..., Any], list[Any]]
UNARY = "relu sigmoid tanh exp sqrt neg abs erf sin cos silu hardswish hardsigmoid reciprocal rsqrt".split()
COMPARISONS = "eq ne lt le gt ge".split()

SAMPLES: dict[str, list[Sample]] = {
    **{f"aten.{name}.default": [(getattr(aten, name), [X]), (getattr(aten, name), [r()])] for name in UNARY},
    **{f"aten.{name}.Tensor": [(getattr(aten, name), [X, ROW])] for name in COMPARISONS},
    **{f"aten.{name}.Scalar": [(with_number(name), [X])] for name in COMPARISONS},
    "aten.add.Tensor": [(aten.add, [X, ROW]), (lambda x: aten.add(x, 2), [X]), (aten.add, [r(), X])],
    "aten.sub.Tensor": [(aten.sub, [X, Y]), (lambda x: aten.sub(x, 0.5), [X])],
    "aten.mul.Tensor": [(aten.mul, [X, r(2, 1, 4)]), (lambda x: aten.mul(x, 3), [X])],
    "aten.div.Tensor": [(aten.div, [X, Y]), (lambda x: aten.div(x, 8), [X])],
    "aten.maximum.default": [(aten.maximum, [X, ROW])],
    "aten.minimum.default": [(aten.minimum, [X, ROW])],
    "aten.pow.Tensor_Scalar": [(lambda x: aten.pow(x, 2), [X]), (lambda x: aten.pow(x, 3.0), [X])],
    "aten.gelu.default": [(aten.gelu, [X]), (lambda x: aten.gelu(x, approximate="tanh"), [X])],
    "aten.leaky_relu.default": [(aten.leaky_relu, [X]), (lambda x: aten.leaky_relu(x, 0.2), [X])],
    "aten.clamp.default": [(lambda x: aten.clamp(x, -0.5, 0.5), [X]), (lambda x: aten.clamp(x, None, 0), [X])],
    "aten.hardtanh.default": [(lambda x: aten.hardtanh(x, 0.0, 6.0), [X])],
    "aten.logical_not.default": [(aten.logical_not, [B])],
    "aten.logical_and.default": [(aten.logical_and, [B, B.flip(0)])],
    "aten.where.self": [(aten.where, [B, r(2, 3, 4), r(4)])],
    "aten.mean.dim": [(lambda x: aten.mean(x, [-1], True), [X]), (lambda x: aten.mean(x, [0, 2]), [X])],
    "aten.sum.dim_IntList": [(lambda x: aten.sum(x, [1], True), [X]), (lambda x: aten.sum(x, [0, 1, 2]), [X])],
    "aten.amax.default": [(lambda x: aten.amax(x, [1]), [X]), (lambda x: aten.amax(x, []), [X])],
    "aten.amin.default": [(lambda x: aten.amin(x, [-1], True), [X])],
    "aten.mm.default": [(aten.mm, [r(3, 4), r(4, 5)])],
    "aten.bmm.default": [(aten.bmm, [r(2, 3, 4), r(2, 4, 5)])],
    "aten.addmm.default": [(aten.addmm, [r(5), r(3, 4), r(4, 5)]), (aten.addmm, [r(3, 5), r(3, 4), r(4, 5)])],
    "aten.convolution.default": [
        (lambda x, w, b: aten.convolution(x, w, b, [2, 1], [1, 0], [1, 2], False, [0, 0], 1),
         [IMAGE, r(8, 6, 3, 3), r(8)]),
        (lambda x, w: aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 3), [IMAGE, r(9, 2, 3, 3)]),
        (lambda x, w, b: aten.convolution(x, w, b, [1, 1], [1, 1], [1, 1], False, [0, 0], 6),
         [IMAGE, r(6, 1, 3, 3), r(6)]),
        (lambda x, w, b: aten.convolution(x, w, b, [1], [1], [1], False, [0], 1), [r(2, 4, 11), r(5, 4, 3), r(5)]),
    ],
    "aten.native_layer_norm.default": [
        (lambda x, w, b: aten.native_layer_norm(x, [4], w, b, 1e-5), [X, r(4), r(4)]),
        (lambda x: aten.native_layer_norm(x, [3, 4], None, None, 1e-6), [X]),
    ],
    "aten._native_batch_norm_legit_no_training.default": [
        (lambda x, w, b, m, v: aten._native_batch_norm_legit_no_training(x, w, b, m, v, 0.1, 1e-5)[0],
         [IMAGE, r(6), r(6), r(6), torch.rand(6) + 0.1]),
    ],
    "aten._softmax.default": [
        (lambda x: aten._softmax(x, -1, False), [X]),
        (lambda x: aten._softmax(x, 1, False), [X]),
    ],
    "aten._scaled_dot_product_flash_attention_for_cpu.default": [
        (lambda q, k, v: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0],
         [r(2, 3, 5, 8)] + [r(2, 3, 7, 8)] * 2),
        (lambda q, k, v, m: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=m, scale=0.3)[0],
         [r(2, 3, 5, 8), r(2, 3, 7, 8), r(2, 3, 7, 8), r(2, 3, 5, 7)]),
        (lambda q, k, v: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, is_causal=True)[0],
         [r(2, 3, 7, 8)] * 3),
        (lambda q, k, v: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, is_causal=True)[0],
         [r(2, 3, 5, 8)] + [r(2, 3, 7, 8)] * 2),
    ],
    "aten.constant_pad_nd.default": [
        (lambda x: aten.constant_pad_nd(x, [1, 2, 0, 3], 0.5), [X]),
        (lambda x: aten.constant_pad_nd(x, [-1, 2], 1), [X]),
        (lambda x: aten.constant_pad_nd(x, [0, 0, 0, 0, 1, 1]), [X]),
    ],
    "aten.roll.default": [
        (lambda x: aten.roll(x, [-2, 1], [1, -1]), [X]),
        (lambda x: aten.roll(x, [5], [2]), [X]),
        (lambda x: aten.roll(x, [1], [0]), [B]),
    ],
    "aten.max_pool2d_with_indices.default": [
        (lambda x: aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1]), [IMAGE]),
        (lambda x: aten.max_pool2d_with_indices(x, [2, 3])[0], [IMAGE]),
    ],
    "aten.avg_pool2d.default": [
        (lambda x: aten.avg_pool2d(x, [3, 3], [2, 2], [1, 1]), [IMAGE]),
        (lambda x: aten.avg_pool2d(x, [2], [1], [1], False, False), [IMAGE]),
    ],
    "aten.embedding.default": [(aten.embedding, [r(10, 4), torch.randint(0, 10, (2, 3))])],
    "aten.reshape.default": [
        (lambda x: aten.reshape(x, [x.shape[0] * 3, -1]), [X]),
        (lambda x: aten.reshape(x, [2, 12]), [B.repeat(2, 1)]),
    ],
    "aten.permute.default": [(lambda x: aten.permute(x, [2, 0, -2]), [X])],
    "aten.t.default": [(aten.t, [r(3, 4)]), (aten.t, [r(3)])],
    "aten.transpose.int": [(lambda x: aten.transpose(x, 0, -1), [X])],
    "aten.unsqueeze.default": [(lambda x: aten.unsqueeze(x, -1), [X]), (lambda x: aten.unsqueeze(x, 0), [B])],
    "aten.expand.default": [(lambda x: aten.expand(x, [5, -1, 3, 4]), [r(2, 1, 4)])],
    "aten.slice.Tensor": [
        (lambda x: aten.slice(x, 1, 1, 3), [X]),
        (lambda x: aten.slice(x, -1, -3, 9223372036854775807, 2), [X]),
        (lambda x: aten.slice(x, 0, None, -1), [X]),
    ],
    "aten.select.int": [(lambda x: aten.select(x, 1, -1), [X]), (lambda x: aten.select(x, -1, 0), [X])],
    "aten.split.Tensor": [(lambda x: aten.split(x, 2, 1), [X])],
    "aten.unbind.int": [(lambda x: x.unbind(0), [X]), (lambda x: x.unbind(-1)[1:], [X])],
    "aten.split_with_sizes.default": [(lambda x: aten.split_with_sizes(x, [1, 3], -1), [X])],
    "aten.cat.default": [(lambda x, y: aten.cat([x, y], -1), [X, Y]), (lambda x, y: aten.cat([x, y, x]), [X, Y])],
    "aten.clone.default": [(aten.clone, [X])],
    "aten.detach.default": [(aten.detach, [X])],
    "aten.alias.default": [(aten.alias, [X])],
}  # fmt: skip

CASES = [(name, index) for name in sorted(ROWS) for index in range(len(SAMPLES.get(name, ())))]


def test_every_entry_has_a_sample():
    assert set(SAMPLES) == set(ROWS)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("name", "index"), CASES)
def test_claims_are_true(name, index, dynamic):
    function, inputs = SAMPLES[name][index]
    region = trace_region(function, inputs, dynamic=dynamic)
    ops = {view.op for view in region.views}
    assert name in ops or (name, ops) == ("aten.detach.default", {"aten.alias.default"})  # torch 2.15 traces it so
    verdicts = [BACKEND.judge(view) for view in region.views]
    if dynamic and not all(isinstance(verdict, Supported) for verdict in verdicts):
        codes = {verdict.code for verdict in verdicts if isinstance(verdict, Unsupported)}
        assert codes <= {"dynamic-shape", "argument"}
        return
    assert all(isinstance(verdict, Supported) for verdict in verdicts), verdicts
    compiled = BACKEND.compile(region)
    values = make_inputs(region)
    expected = region.graph_module.forward(*values)
    for mine, eager in zip(compiled.run(values), expected, strict=True):
        assert mine.dtype == eager.dtype
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)
        assert mine.is_contiguous()


REFUSED: dict[str, Sample] = {
    "unknown-op": (aten.erfinv, [X]),
    "dtype": (aten.add, [X.double(), X.double()]),
    "random": (lambda x: aten.native_dropout(x, 0.5, True)[0], [X]),
    "argument": (lambda x, y: aten.add(x, y, alpha=2), [X, Y]),
}


@pytest.mark.parametrize("code", sorted(REFUSED))
def test_refusals(code):
    function, inputs = REFUSED[code]
    _, graph = trace_graph(function, inputs)
    verdict = BACKEND.judge(graph.view(graph.placed_nodes[0].name))
    assert isinstance(verdict, Unsupported) and verdict.code == code and verdict.detail


@pytest.mark.parametrize(("function", "inputs"), [
    (aten.add, [torch.arange(3), torch.arange(3)]),
    (aten.relu, [torch.randn(0, 3)]),
    (lambda x: aten.mean(x, [0], dtype=torch.float64), [X]),
    (lambda x, w: aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1), [IMAGE, r(6, 2, 3, 3)]),
    (lambda x: aten.avg_pool2d(x, [3, 3], [2, 2], [0, 0], True), [IMAGE]),
    (lambda x: aten.roll(x, [5]), [X]),
    (lambda q, k: aten._scaled_dot_product_flash_attention_for_cpu(q, k, k)[0], [r(2, 4, 5, 8), r(2, 2, 7, 8)]),
])  # fmt: skip
def test_more_refusals(function, inputs):
    _, graph = trace_graph(function, inputs)
    assert isinstance(BACKEND.judge(graph.view(graph.placed_nodes[0].name)), Unsupported)
