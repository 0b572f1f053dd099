"""Layer norm, group norm and RMS norm with their gradients against eager and float64."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.codegen.lower.judging import judge_op
from mixbackend.contracts import Supported
from mixbackend.graph.trace import trace_graph, trace_region

aten = torch.ops.aten
FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
CASES = [*((dtype, False) for dtype in FLOATING), (torch.float32, True)]


def values(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0, offset: float = 0.5) -> torch.Tensor:
    """Random numbers around an offset."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).add(offset).to(dtype)


@pytest.mark.parametrize(("dtype", "dynamic"), CASES)
def test_layer_norm(check_lowering, dtype, dynamic):
    x, weight, bias = values(4, 5, 6, dtype=dtype), values(6, dtype=dtype, seed=1), values(6, dtype=dtype, seed=2)
    check_lowering(lambda *t: aten.native_layer_norm(t[0], [6], t[1], t[2], 1e-5), [x, weight, bias], dynamic=dynamic)
    check_lowering(lambda *t: aten.native_layer_norm(t[0], [6], t[1], None, 1e-5), [x, weight], dynamic=dynamic)
    check_lowering(lambda x: aten.native_layer_norm(x, x.shape[1:], None, None, 1e-3), [x], dynamic=dynamic)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("dtype", "dynamic"), CASES)
@pytest.mark.parametrize("last", [1, 2])
def test_layer_norm_backward(check_lowering, dtype, dynamic, last):
    x, grad = values(4, 5, 6, dtype=dtype), values(4, 5, 6, dtype=dtype, seed=3, offset=0.1)
    shape = x.shape[-last:]
    weight, bias = values(*shape, dtype=dtype, seed=1), values(*shape, dtype=dtype, seed=2)
    _, mean, rstd = aten.native_layer_norm(x, shape, weight, bias, 1e-5)

    def gradients(grad, x, mean, rstd, weight, bias):
        return aten.native_layer_norm_backward(grad, x, x.shape[-last:], mean, rstd, weight, bias, [True, True, True])

    check_lowering(gradients, [grad, x, mean, rstd, weight, bias], dynamic=dynamic)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("op", ["layer_norm", "group_norm"])
def test_the_gradient_of_a_value_that_is_normalised_alone_is_zero(op, dtype):
    """Exactly, as the definition has it; what an infinite gradient gives is as undefined as in eager."""
    x, grad, weight = (values(64, 3, dtype=dtype, seed=seed) for seed in range(3))
    grad[5, 1] = math.inf

    def layer_norm(grad, x, mean, rstd, weight):
        shape, scale = (64, 3, 1), weight[0, :1]
        grad, x, mean, rstd = (item.reshape(shape) for item in (grad, x, mean, rstd))
        return aten.native_layer_norm_backward(grad, x, [1], mean, rstd, scale, scale, [True, True, True])

    def group_norm(grad, x, mean, rstd, weight):
        return aten.native_group_norm_backward(grad, x, mean, rstd, weight[0], 64, 3, 1, 3, [True, True, True])

    function = {"layer_norm": layer_norm, "group_norm": group_norm}[op]
    rstd = torch.full_like(x, 1e-5).rsqrt()
    inputs = [grad, x, x.clone(), rstd, weight]
    region = trace_region(function, inputs)
    arguments = [inputs[int(item.name.removeprefix("arg").split("_")[0])] for item in region.inputs]
    gradient = CodegenBackend().compile(region).run(arguments)[0].reshape(64, 3)
    assert gradient[5, 1].isnan()
    gradient[5, 1] = 0.0
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_layer_norm_backward_in_part(check_lowering):
    x, grad, weight = values(4, 6), values(4, 6, seed=3), values(6, seed=1)
    _, mean, rstd = aten.native_layer_norm(x, [6], weight, None, 1e-5)

    def kept(grad, x, mean, rstd, weight, mask, places):
        results = aten.native_layer_norm_backward(grad, x, [6], mean, rstd, weight, weight, mask)
        return tuple(results[place] for place in places)

    for places in ((0,), (1,), (2,), (0, 2)):
        mask = [place in places for place in range(3)]
        check_lowering(lambda *t, m=mask, p=places: kept(*t, m, p), [grad, x, mean, rstd, weight])
    plain = lambda *t: aten.native_layer_norm_backward(*t[:2], [6], *t[2:], None, None, [True, False, False])[0]  # noqa: E731
    check_lowering(plain, [grad, x, mean, rstd])


def test_mixed_types(check_lowering):
    """Weights in float32 beside values in 16 bits: eager's statistics are float32."""
    x, grad = values(4, 6, dtype=torch.bfloat16), values(4, 6, dtype=torch.bfloat16, seed=3)
    weight, bias = values(6, seed=1), values(6, seed=2)
    check_lowering(lambda *t: aten.native_layer_norm(t[0], [6], t[1], t[2], 1e-5)[0], [x, weight, bias])
    _, mean, rstd = aten.native_layer_norm(x, [6], weight, bias, 1e-5)

    def gradients(grad, x, mean, rstd, weight, bias):
        return aten.native_layer_norm_backward(grad, x, [6], mean, rstd, weight, bias, [True, True, True])

    check_lowering(gradients, [grad, x, mean, rstd, weight, bias])
    image, scale = values(2, 4, 3, 3, dtype=torch.bfloat16), values(4, seed=1)
    check_lowering(lambda x, w: aten.native_group_norm(x, w, w, 2, 4, 9, 2, 1e-5)[0], [image, scale])


def test_statistics_of_mixed_types(check_lowering):
    x, weight = values(4, 6, dtype=torch.bfloat16), values(6)
    check_lowering(lambda x, w: aten.native_layer_norm(x, [6], w, w, 1e-5), [x, weight])
    image, scale, saved = values(2, 4, 3, 3, dtype=torch.bfloat16), values(4), values(2, 2)
    check_lowering(lambda x, w: aten.native_group_norm(x, w, w, 2, 4, 9, 2, 1e-5), [image, scale])
    backward = lambda x, w, s: aten.native_group_norm_backward(x, x, s, s, w, 2, 4, 9, 2, [True] * 3)  # noqa: E731
    check_lowering(backward, [image, scale, saved])


@pytest.mark.parametrize(("phase", "taken"), [("forward", False), ("inference", True)])
def test_statistics_announced_in_another_type_than_eagers_are_refused_in_training(phase, taken):
    inputs = [values(4, 6, dtype=torch.bfloat16), values(6)]
    _, graph = trace_graph(lambda x, w: aten.native_layer_norm(x, [6], w, w, 1e-5), inputs, phase=phase)
    view = graph.view(graph.nodes[0].name)
    announced = tuple(replace(meta, dtype=torch.bfloat16) for meta in view.output_tensors)
    verdict = judge_op(replace(view, node=replace(view.node, outputs=announced)))
    assert isinstance(verdict, Supported) if taken else verdict.code == "dtype"


def test_layer_norm_of_large_values(check_lowering):
    x, weight = values(4, 3000, offset=200.0), values(3000, seed=1)
    check_lowering(lambda x, w: aten.native_layer_norm(x, [3000], w, w, 1e-5), [x, weight])


def test_layer_norm_of_odd_strides(check_lowering):
    weight = values(6, seed=1)
    for x in (values(6, 4).t(), values(4, 1, 6).expand(4, 5, 6), values(8, 12)[::2, ::2]):
        check_lowering(lambda x, w: aten.native_layer_norm(x, [6], w, w, 1e-5), [x, weight])


def test_layer_norm_of_no_rows(check_lowering):
    x, weight, mean = values(0, 6), values(6), values(0, 1)
    check_lowering(lambda x, w: aten.native_layer_norm(x, [6], w, w, 1e-5), [x, weight])
    backward = lambda x, w, m: aten.native_layer_norm_backward(x, x, [6], m, m, w, w, [True, True, True])  # noqa: E731
    check_lowering(backward, [x, weight, mean])


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("dtype", "dynamic"), CASES)
@pytest.mark.parametrize("space", [(), (7,), (4, 3)])
def test_group_norm(check_lowering, dtype, dynamic, space):
    x = values(2, 6, *space, dtype=dtype)
    weight, bias = values(6, dtype=dtype, seed=1), values(6, dtype=dtype, seed=2)

    def norm(x, weight, bias):
        return aten.native_group_norm(x, weight, bias, x.shape[0], 6, math.prod(x.shape[2:]), 3, 1e-5)

    check_lowering(norm, [x, weight, bias], dynamic=dynamic)
    check_lowering(lambda x: aten.native_group_norm(x, None, None, 2, 6, math.prod(space), 2, 1e-5), [x])


@pytest.mark.parametrize(("dtype", "dynamic"), CASES)
def test_group_norm_backward(check_lowering, dtype, dynamic):
    x, grad = values(2, 6, 4, 3, dtype=dtype), values(2, 6, 4, 3, dtype=dtype, seed=3, offset=0.1)
    weight = values(6, dtype=dtype, seed=1)
    _, mean, rstd = aten.native_group_norm(x, weight, weight, 2, 6, 12, 3, 1e-5)

    def gradients(grad, x, mean, rstd, weight):
        sizes = (x.shape[0], 6, x.shape[2] * x.shape[3])
        return aten.native_group_norm_backward(grad, x, mean, rstd, weight, *sizes, 3, [True, True, True])

    check_lowering(gradients, [grad, x, mean, rstd, weight], dynamic=dynamic)
    bias_only = lambda *t: aten.native_group_norm_backward(*t, 2, 6, 12, 3, [True, False, True])  # noqa: E731
    check_lowering(lambda *t: bias_only(*t)[0::2], [grad, x, mean, rstd, weight])
    input_only = lambda *t: aten.native_group_norm_backward(*t, None, 2, 6, 12, 3, [True, False, False])  # noqa: E731
    check_lowering(lambda *t: input_only(*t)[0], [grad, x, mean, rstd])


def test_symbolic_channels_in_groups_are_refused(refused):
    norm = lambda x: aten.native_group_norm(x, None, None, x.shape[0], x.shape[1], x.shape[2], 2, 1e-5)  # noqa: E731
    assert "dynamic-shape" in refused(norm, [values(2, 6, 5)], dynamic=True)
