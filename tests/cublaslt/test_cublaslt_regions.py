"""What the cuBLASLt backend claims, refuses and writes; on fake tensors, so that no GPU is needed."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from mixbackend.backends.cublaslt import CublasLtBackend

aten = torch.ops.aten


def _formula(value):
    return 0.5 * value * (1.0 + torch.tanh(0.7978845608028654 * (value + 0.044715 * torch.pow(value, 3.0))))


_ACTIVATIONS = {
    "linear_relu": functional.relu,
    "linear_gelu_tanh": lambda value: functional.gelu(value, approximate="tanh"),
    "linear_gelu_formula": _formula,
}


def _folded(activation):
    """A linear layer on a batch of rows, which is folded for the product."""

    def function(value, weight, bias):
        rows = aten.reshape(value, [-1, value.shape[-1]])
        made = aten.addmm(bias, rows, aten.t(weight))
        return activation(aten.reshape(made, [*value.shape[:-1], weight.shape[0]]))

    return function


@pytest.fixture
def layer(bench):
    return bench.tensors((8, 128, 768), (3072, 768), (3072,))


def test_it_says_why_it_cannot_be_used_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answer = CublasLtBackend().availability()
    assert not answer.available
    assert "CUDA" in answer.reason


@pytest.mark.parametrize("name", _ACTIVATIONS)
def test_an_activation_ends_the_product(bench, layer, name):
    region = bench.region(_folded(_ACTIVATIONS[name]), *layer)
    assert [pattern for pattern, _ in region.matches] == [name]
    source = bench.backend.compile(region).source
    assert source.count("product_(") == 1
    assert f"use_gelu={name != 'linear_relu'}" in source
    assert "tanh" not in source.replace(name, "")


def test_the_planner_prefers_the_fused_layer(bench, layer):
    plan = bench.plan(_folded(_ACTIVATIONS["linear_gelu_tanh"]), *layer)
    assert [item.backend for item in plan.regions] == ["cublaslt"]
    assert plan.regions[0].matches


def test_exact_gelu_has_no_epilogue(bench, layer):
    plan = bench.plan(_folded(functional.gelu), *layer)
    assert not any(item.matches for item in plan.regions)


def test_a_product_that_others_read_is_not_fused(bench, layer):
    def function(value, weight, bias):
        made = aten.addmm(bias, aten.reshape(value, [-1, 768]), aten.t(weight))
        return aten.relu(made), made

    assert not any(item.matches for item in bench.plan(function, *layer, preferred=True).regions)


@pytest.mark.parametrize("scale", [{"beta": 2.0}, {"alpha": 0.5}])
def test_scaled_sums_are_not_fused(bench, scale):
    rows, weight, bias = bench.tensors((64, 32), (32, 16), (16,))

    def function(*values):
        return aten.relu(aten.addmm(*values, **scale))

    assert not any(item.matches for item in bench.plan(function, bias, rows, weight, preferred=True).regions)


def test_a_matrix_as_bias_is_not_fused(bench):
    rows, weight, bias = bench.tensors((64, 32), (32, 16), (64, 16))
    plan = bench.plan(lambda *values: aten.relu(aten.addmm(*values)), bias, rows, weight, preferred=True)
    assert not any(item.matches for item in plan.regions)


def test_other_devices_and_types_are_refused_with_reasons(bench):
    assert [item.code for item in bench.refusals(aten.mm, torch.ones(2, 2), torch.ones(2, 2))] == ["device"]
    assert [item.code for item in bench.refusals(aten.mm, *bench.tensors(*[(4, 4)] * 2, dtype=torch.int8))] == ["dtype"]
    assert [item.code for item in bench.refusals(aten.mm, *bench.tensors((0, 4), (4, 4)))] == ["layout"]
    assert [item.code for item in bench.refusals(aten.sigmoid, *bench.tensors((4, 4)))] == ["unknown-op"]
