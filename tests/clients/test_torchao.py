"""torchao: int8 weights of a compiled model, held against the same quantised model in eager."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .held_against_eager import data, hold_report, hold_results

quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")


def _quantised(dtype, config):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32)).eval().to(dtype)
    quantization.quantize_(model, config)
    return model


def _written_out(model, value):
    """The model in float64, with the weights that the quantised ones stand for."""
    plain = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32)).double()
    with torch.no_grad():
        for mine, theirs in zip(plain, model, strict=True):
            if isinstance(mine, nn.Linear):
                mine.weight.copy_(theirs.weight.dequantize().double())
                mine.bias.copy_(theirs.bias)
        return plain(value.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_int8_weights(dtype, mixture):
    model = _quantised(dtype, quantization.Int8WeightOnlyConfig())
    run = torch.compile(model, backend=mixture)
    for rows in (5, 5, 9):
        value = data(dtype, rows, 64)
        with torch.no_grad():
            hold_results([run(value)], [model(value)], [_written_out(model, value)])
    hold_report(mixture)


def test_int8_weights_and_activations(mixture):
    model = _quantised(torch.float32, quantization.Int8DynamicActivationInt8WeightConfig())
    run = torch.compile(model, backend=mixture)
    value = data(torch.float32, 24, 64)
    with torch.no_grad():
        hold_results([run(value)], [model(value)], [_written_out(model, value)])
    hold_report(mixture)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_row_with_int8_weights_is_claimed(dtype, mixture):
    """A step of generation: weights are read as they are stored, by generated code."""
    model = _quantised(dtype, quantization.Int8WeightOnlyConfig())
    run = torch.compile(model, backend=mixture)
    value = data(dtype, 1, 64)
    with torch.no_grad():
        for _ in range(3):
            hold_results([run(value)], [model(value)], [_written_out(model, value)])
    hold_report(mixture)
    regions = [region for graph in mixture.report().to_dict()["graphs"] for region in graph["regions"]]
    assert {region["backend"] for region in regions if "aten.mm.default" in region["ops"]} == {"codegen"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 5])
def test_weights_in_groups(dtype, rows, mixture):
    """Codes of 4 bits, each in a byte, with a scale and a zero for every 32 terms."""
    granularity = quantization.granularity.PerGroup(32)
    model = _quantised(dtype, quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=granularity))
    run = torch.compile(model, backend=mixture)
    value = data(dtype, rows, 64)
    with torch.no_grad():
        for _ in range(3):
            hold_results([run(value)], [model(value)], [_written_out(model, value)])
    hold_report(mixture)
