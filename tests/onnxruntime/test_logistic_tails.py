"""The logistic function of few elements that all lie far out in its tail keeps its relative accuracy."""

from __future__ import annotations

import pytest
import torch

import mixbackend

CONFIGURATION = {
    "backends": ["onnxruntime", "eager"],
    "rules": [{"match": {"op": "aten.*"}, "require": "onnxruntime"}],
}
X = torch.tensor([[-30.0, -22.0, -17.5]])


@pytest.mark.parametrize("function", [torch.sigmoid, torch.nn.functional.silu])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tails_of_few_elements(function, dtype) -> None:
    backend = mixbackend.auto(CONFIGURATION)
    value = X.to(dtype)
    with torch.no_grad():
        found = torch.compile(lambda x: 2.0 * function(x), backend=backend)(value)
    assert {region["backend"] for region in backend.report().to_dict()["graphs"][0]["regions"]} == {"onnxruntime"}
    torch.testing.assert_close(found, 2.0 * function(value.double()).to(dtype), rtol=1e-6, atol=0.0)
    assert not [event for event in backend.report().events if event.kind == "verify_failed"]


def test_infinities_and_no_numbers() -> None:
    backend = mixbackend.auto(CONFIGURATION)
    value = torch.tensor([float("inf"), float("-inf"), float("nan"), -200.0, 200.0])

    def both(x):
        return 2.0 * torch.sigmoid(x), 2.0 * torch.nn.functional.silu(x)

    with torch.no_grad():
        found = torch.compile(both, backend=backend)(value)
    graphs = backend.report().graphs
    assert {region.backend for item in graphs for region in item.plan.regions} == {"onnxruntime"}
    torch.testing.assert_close(found, both(value), equal_nan=True)
