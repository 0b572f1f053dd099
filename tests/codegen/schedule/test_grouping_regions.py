"""Kernels of real functions: how many, over which loops, and what stays private."""

from __future__ import annotations

import pytest
import torch
from drawn_graphs import cpu_traits

from mixbackend.backends.codegen.ir.stages import GraphOutput, targets_of
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.backends.codegen.schedule.check_groups import check_groups
from mixbackend.backends.codegen.schedule.grouping import choose_layouts, group_stages
from mixbackend.backends.codegen.schedule.simplify import simplify
from mixbackend.backends.codegen.schedule.split import split_reductions
from mixbackend.backends.codegen.schedule.split_loops import split_loops
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten
tensor = torch.randn


def kernels(function, *inputs, dynamic=False, width=16):
    """Outer extents of every kernel; everything that is no output and has no other reader has to be private."""
    traits = cpu_traits(parallel_width=width)
    graph, _ = simplify(lower_region(trace_region(function, inputs, dynamic=dynamic)), {})
    graph = split_loops(graph)
    graph = split_reductions(graph, choose_layouts(graph), width, {})
    groups, _ = group_stages(graph, choose_layouts(graph), traits)
    check_groups(graph, groups)
    if len(groups) == 1:
        outputs = {output.tensor for output in graph.outputs if isinstance(output, GraphOutput)}
        made = {name for stage in graph.stages for name in targets_of(stage)}
        assert groups[0].private == made - outputs
    return [[str(loop.size) for loop in group.outer] for group in groups]


ROWS = (2048, 768)


def test_softmax():
    assert kernels(lambda x: torch.softmax(x, -1), tensor(ROWS)) == [["2048"]]
    assert kernels(lambda x: torch.log_softmax(x, -1), tensor(ROWS)) == [["2048"]]
    backward = lambda g, y: aten._softmax_backward_data(g, y, -1, torch.float32)  # noqa: E731
    assert kernels(backward, tensor(ROWS), tensor(ROWS)) == [["2048"]]


def test_masked_softmax():
    def masked(x, mask):
        return torch.softmax(x.masked_fill(mask, -1e9) / 8.0, -1)

    assert kernels(masked, tensor(4, 8, 128, 128), tensor(4, 1, 1, 128) > 0) == [["4", "8", "128"]]


@pytest.mark.parametrize("dynamic", [False, True])
def test_layer_norm(dynamic):
    def norm(x, weight, bias):
        return aten.native_layer_norm(x, [768], weight, bias, 1e-5)

    ((rows,),) = kernels(norm, tensor(ROWS), tensor(768), tensor(768), dynamic=dynamic)
    assert rows.startswith("s") if dynamic else rows == "2048"


def test_layer_norm_backward_is_rows_then_columns_in_pieces():
    def backward(grad, x, mean, scale, weight, bias):
        return aten.native_layer_norm_backward(grad, x, [768], mean, scale, weight, bias, [True, True, True])

    statistics = (tensor(2048, 1), tensor(2048, 1))
    made = kernels(backward, tensor(ROWS), tensor(ROWS), *statistics, tensor(768), tensor(768))
    assert made == [["2048"], ["32", "768"], ["768"]]


def test_rms_norm():
    def norm(x, weight):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight

    assert kernels(norm, tensor(ROWS), tensor(768)) == [["2048"]]


FEW_IMAGES, IMAGES = (4, 64, 14, 14), (32, 64, 14, 14)


def test_batch_norm_in_training():
    def norm(x, weight, bias, mean, variance):
        return aten._native_batch_norm_legit_functional(x, weight, bias, mean, variance, True, 0.1, 1e-5)

    channels = [tensor(64) for _ in range(4)]
    assert kernels(norm, tensor(FEW_IMAGES), *channels) == [["64"]]
    assert kernels(norm, tensor(IMAGES), *channels) == [["64"], ["32", "64", "14", "14"]]
    last = tensor(IMAGES).to(memory_format=torch.channels_last)
    # The statistics tile contiguous channels, the rest runs through memory in order.
    assert kernels(norm, last, *channels)[-1] == ["32", "14", "14", "64"]


def test_batch_norm_backward():
    def backward(grad, x, weight, mean, scale):
        return aten.native_batch_norm_backward(
            grad, x, weight, weight, weight, mean, scale, True, 1e-5, [True, True, True]
        )

    channels = [tensor(64) for _ in range(3)]
    assert kernels(backward, tensor(FEW_IMAGES), tensor(FEW_IMAGES), *channels) == [["64"]]


def test_group_norm():
    def norm(x, weight, bias):
        return aten.native_group_norm(x, weight, bias, 8, 64, 256, 4, 1e-5)

    assert kernels(norm, tensor(8, 64, 16, 16), tensor(64), tensor(64)) == [["8", "4"]]


def test_cross_entropy_is_rows_and_their_mean():
    def loss(x, target):
        return torch.nn.functional.cross_entropy(x, target)

    made = kernels(loss, tensor(512, 1000), torch.randint(0, 1000, (512,)))
    assert made == [["512"], []]


def test_pointwise_chains():
    assert kernels(lambda x, b: torch.nn.functional.gelu(x + b) * 2, tensor(ROWS), tensor(768)) == [["2048", "768"]]
    backward = lambda g, x: aten.gelu_backward(g, x, approximate="tanh")  # noqa: E731
    assert kernels(backward, tensor(ROWS), tensor(ROWS)) == [["2048", "768"]]


def test_heads_of_attention():
    def scores(x):
        heads = x.view(8, 128, 12, 64).transpose(1, 2)
        return torch.softmax(heads, -1).transpose(1, 2).reshape(8, 128, 768)

    assert [sorted(item) for item in kernels(scores, tensor(8, 128, 768))] == [["12", "128", "8"]]

    def centred(heads, weight):
        x = heads.transpose(1, 2).reshape(1024, 768)
        return (x - x.mean(-1, keepdim=True)) * weight

    assert kernels(centred, tensor(8, 12, 128, 64), tensor(768)) == [["8", "128"]]


def test_scan_and_concatenation():
    assert kernels(lambda x: torch.cumsum(torch.softmax(x, -1), -1) * 2, tensor(ROWS)) == [["2048"]]
    assert kernels(lambda x, y: torch.cat([x.relu(), y], -1).sum(-1), tensor(ROWS), tensor(ROWS)) == [["2048"]]
