"""D10: a report of repeated layers fits on a screen or two."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import mixbackend


@pytest.mark.nightly
def test_a_training_step_of_many_equal_layers_is_reported_in_few_lines(tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    mixture = mixbackend.auto(
        {"backends": ["codegen", "onednn", "eager"], "select": "off", "cache": {"dir": str(tmp_path)}}
    )
    torch.compile(model, backend=mixture)(torch.randn(2, 8, 32)).sum().backward()
    report = mixture.report()
    regions = sum(len(graph["regions"]) for graph in report.to_dict()["graphs"])
    assert regions > 100
    assert len(str(report).splitlines()) <= 100
