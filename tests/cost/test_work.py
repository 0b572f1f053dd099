"""Work of ops, by hand and on whole models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.contracts import OpView
from mixbackend.graph.describe import describe
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner.work import dtype_of, flops_of, stored_bytes

aten = torch.ops.aten


def views_of(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> dict[str, OpView]:
    _, graph = trace_graph(function, inputs, dynamic=dynamic)
    return {node.op: graph.view(node.name) for node in graph.placed_nodes}


def flops(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> float:
    return sum(flops_of(view) for view in views_of(function, *inputs, dynamic=dynamic).values())


def test_products_of_matrices() -> None:
    a, b, bias = torch.randn(5, 7), torch.randn(7, 11), torch.randn(11)
    assert flops(aten.mm, a, b) == 2 * 5 * 7 * 11
    assert flops(aten.addmm, bias, a, b) == 2 * 5 * 7 * 11
    assert flops(aten.bmm, torch.randn(3, 5, 7), torch.randn(3, 7, 11)) == 3 * 2 * 5 * 7 * 11
    assert flops(aten.baddbmm, torch.randn(3, 5, 11), torch.randn(3, 5, 7), torch.randn(3, 7, 11)) == 3 * 2 * 5 * 7 * 11
    assert flops(aten.mv, a, torch.randn(7)) == 2 * 5 * 7
    assert flops(aten.dot, torch.randn(7), torch.randn(7)) == 2 * 7


def test_symbolic_sizes_count_with_their_hints() -> None:
    a, b = torch.randn(5, 7), torch.randn(7, 11)
    assert flops(aten.mm, a, b, dynamic=True) == 2 * 5 * 7 * 11


def convolve(image: Any, weight: Any, transposed: bool = False, groups: int = 1) -> Any:
    return aten.convolution(image, weight, None, [1, 1], [1, 1], [1, 1], transposed, [0, 0], groups)


def test_convolutions() -> None:
    image = torch.randn(2, 8, 10, 10)
    once = 2 * 2 * 16 * 100 * 8 * 9
    assert flops(convolve, image, torch.randn(16, 8, 3, 3)) == once
    assert flops(lambda x, w: convolve(x, w, groups=4), image, torch.randn(16, 2, 3, 3)) == once / 4
    assert flops(lambda x, w: convolve(x, w, transposed=True), image, torch.randn(8, 16, 3, 3)) == once


@pytest.mark.parametrize(("mask", "count"), [([True, True, False], 2), ([False, True, True], 1), ([True] * 3, 2)])
def test_convolution_backward_counts_wanted_gradients(mask: list[bool], count: int) -> None:
    image, weight, gradient = torch.randn(2, 8, 10, 10), torch.randn(16, 8, 3, 3), torch.randn(2, 16, 10, 10)

    def backward(g: Any, x: Any, w: Any) -> Any:
        results = aten.convolution_backward(g, x, w, [16], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
        return tuple(result for result, wanted in zip(results, mask, strict=True) if wanted)

    views = views_of(backward, gradient, image, weight)
    assert flops_of(views["aten.convolution_backward.default"]) == count * 2 * 2 * 16 * 100 * 8 * 9


def test_attention_and_its_backward() -> None:
    inputs = [torch.randn(2, 3, 16, 8) for _ in range(3)]
    name = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    attend = torch.nn.functional.scaled_dot_product_attention
    (view,) = [view for op, view in views_of(attend, *inputs).items() if op == name]
    assert flops_of(view) == 4 * 2 * 3 * 16 * 16 * 8
    causal = views_of(lambda q, k, v: attend(q, k, v, is_causal=True), *inputs)[name]
    assert flops_of(causal) == 2 * 2 * 3 * 16 * 16 * 8


def test_views_do_nothing_and_copies_only_move() -> None:
    value = torch.randn(6, 4)
    assert flops(lambda x: aten.transpose(aten.reshape(x, [4, 6]), 0, 1), value) == 0
    assert flops(lambda x: aten.cat([x, x]), value) == 0
    transposed = views_of(lambda x: aten.clone(aten.t(x), memory_format=torch.contiguous_format), value)
    assert flops_of(transposed["aten.clone.default"]) == 24


def test_loops() -> None:
    value = torch.randn(6, 4)
    assert flops(aten.relu, value) == 24
    assert flops(aten.gelu, value) == 16 * 24
    assert [flops(aten.pow.Tensor_Scalar, value, power) for power in (2, 3.0, 0.5, 2.5)] == [24, 48, 72, 480]
    assert flops(lambda x: aten.sum(x, [1]), value) == 24
    assert flops(lambda x: aten._softmax(x, -1, False), value) == 14 * 24
    assert flops(lambda x: aten.native_layer_norm(x, [4], None, None, 1e-5)[0], value) == 8 * 24
    assert flops(lambda x: aten.avg_pool2d(x, [3, 3], [1, 1]), torch.randn(1, 2, 5, 5)) == 9 * 2 * 9
    assert flops(lambda x: aten.avg_pool2d(x, [2]), torch.randn(1, 2, 4, 4)) == 4 * 2 * 4


def test_dtype() -> None:
    (view,) = views_of(lambda x, y: aten.mul(x, y), torch.randn(6, 4), torch.randn(6, 1).half()).values()
    assert dtype_of(view) == "float32"
    (view,) = views_of(lambda x: aten.bitwise_not(x), torch.ones(3, dtype=torch.int64)).values()
    assert dtype_of(view) == "int64"


def test_expanded_tensors_count_their_storage() -> None:
    view = views_of(lambda x: aten.mul(aten.expand(x, [100, 4]), 2), torch.randn(1, 4))["aten.mul.Tensor"]
    assert stored_bytes(view.input_tensors[0]) == 16


@pytest.mark.parametrize("op", ["nonzero", "sort", "index_put", "cumsum", "rand_like", "embedding", "upsample"])
def test_every_class_has_a_finite_count(op: str) -> None:
    value = torch.randn(6, 4)
    functions: dict[str, Callable[..., Any]] = {
        "nonzero": lambda x: aten._fft_r2c(x, [1], 0, True),
        "sort": lambda x: aten.sort(x)[0],
        "index_put": lambda x: aten.index_put(x, [torch.tensor([0, 1])], x[:2], True),
        "cumsum": lambda x: aten.cumsum(x, 0),
        "rand_like": lambda x: aten.rand_like(x),
        "embedding": lambda x: aten.embedding(x, torch.tensor([0, 3])),
        "upsample": lambda x: aten.upsample_bilinear2d(x[None, None], [12, 8], False),
    }
    for dynamic in (False, True):
        assert 0 < flops(functions[op], value, dynamic=dynamic) < 1e6


def whole(model: torch.nn.Module, *inputs: torch.Tensor) -> float:
    def run(*arguments: Any) -> Any:
        return (model(*arguments),)

    graph_module = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    graph = describe(graph_module, "inference", "whole")
    return sum(flops_of(graph.view(node.name)) for node in graph.placed_nodes)


def test_a_transformer_layer_of_bert_base_size() -> None:
    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, activation="gelu", dropout=0.0)
    with torch.no_grad():
        # In training mode the layer is its plain operators, in inference one fused operator.
        total = whole(layer.train(), torch.randn(1, 128, 768))
    # BERT-base at 128 tokens is 22.3 GFLOP in products, 12 such layers.
    assert 22.3e9 / 12 <= total <= 22.3e9 / 12 * 1.03


class Bottleneck(torch.nn.Module):
    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        steps = [(channels, inner, 1, 1), (inner, inner, 3, stride), (inner, 4 * inner, 1, 1)]
        self.steps = torch.nn.Sequential(*[convolution(*step) for step in steps])
        self.short = convolution(channels, 4 * inner, 1, stride) if stride > 1 or channels != 4 * inner else None

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.steps(value) + (value if self.short is None else self.short(value)))


def convolution(channels: int, width: int, kernel: int, stride: int) -> torch.nn.Module:
    layer = torch.nn.Conv2d(channels, width, kernel, stride, kernel // 2, bias=False)
    return torch.nn.Sequential(layer, torch.nn.BatchNorm2d(width))


def test_resnet_50() -> None:
    blocks: list[torch.nn.Module] = [convolution(3, 64, 7, 2), torch.nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for index in range(count):
            blocks.append(Bottleneck(channels, 64 << stage, 2 if index == 0 and stage else 1))
            channels = 256 << stage
    model = torch.nn.Sequential(*blocks, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(2048, 1000))
    with torch.no_grad():
        assert whole(model.eval(), torch.randn(1, 3, 224, 224)) == pytest.approx(8.2e9, rel=0.03)
