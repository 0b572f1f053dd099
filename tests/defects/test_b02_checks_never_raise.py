"""B2: a check that cannot be made says so; nothing of it is raised into the user's call."""

from __future__ import annotations

import pytest
import torch

import mixbackend
from mixbackend.contracts import ErrorBudget
from mixbackend.execute import verify
from mixbackend.execute.verify import Check, check_region, eager_result
from mixbackend.graph.trace import trace_region

BUDGET = ErrorBudget(factor=4.0, floor=64.0)


def _read_as_float32(x):
    return torch.ops.aten.view.dtype(x + 1, torch.float32) + 1


def _sums_beside_signs(x):
    return (x * 3).float().sum(), x > 0


def _compiled(function, *inputs):
    """What a call returns, and the events of trouble."""
    torch._dynamo.reset()
    rule = {"match": {}, "require": "inductor"}
    mixture = mixbackend.auto({"backends": ["inductor", "eager"], "rules": [rule]})
    with torch.no_grad():
        outputs = torch.compile(function, backend=mixture)(*inputs)
    report = mixture.report().to_dict()
    owners = {region["backend"] for graph in report["graphs"] for region in graph["regions"]}
    return outputs, [event for event in report["events"] if event["kind"] not in ("threads", "tuning")], owners


def test_bits_that_are_read_as_another_type_are_compared():
    value = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)).half()
    region = trace_region(_read_as_float32, [value])
    right = eager_result(region, [value])
    assert check_region(region, [value], right, BUDGET).right
    assert check_region(region, [value], [right[0].nan_to_num() + 1], BUDGET).deviation is not None
    made, events, owners = _compiled(_read_as_float32, value)
    assert torch.allclose(made, _read_as_float32(value), equal_nan=True)
    assert owners == {"inductor"} and not events


def test_a_boolean_output_beside_one_whose_rounding_matters():
    value = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    region = trace_region(_sums_beside_signs, [value])
    total, signs = eager_result(region, [value])
    far = total + total.abs() + 100
    found = check_region(region, [value], [far, signs], BUDGET)
    assert found.deviation is not None and found.deviation.output == 0
    assert check_region(region, [value], [total, ~signs], BUDGET).deviation.measure == "integer"


@pytest.mark.parametrize("error", [RuntimeError("no such shape"), MemoryError(), TypeError("bool")])
def test_whatever_goes_wrong_in_a_check_is_its_answer(error, monkeypatch):
    def fail(*arguments):
        raise error

    value = torch.randn(4)
    region = trace_region(torch.exp, [value])
    monkeypatch.setattr(verify, "compare", fail)
    check = check_region(region, [value], [value.exp()], BUDGET)
    assert check.deviation is None and not check.right
    assert type(error).__name__ in check.unknown and str(error) in check.unknown


def test_the_report_says_what_could_not_be_checked(monkeypatch):
    def fail(*arguments):
        raise RuntimeError("no such kernel")

    value = torch.randn(8, 16)
    monkeypatch.setattr(verify, "compare", fail)
    made, events, owners = _compiled(lambda x: (x + 1).exp() * 2, value)
    torch.testing.assert_close(made, (value + 1).exp() * 2)
    assert [event["kind"] for event in events] == ["unverified"] and owners == {"inductor"}
    assert "no such kernel" in events[0]["detail"] and events[0]["backend"] == "inductor"


def test_what_is_unknown_is_not_right():
    assert Check().right
    assert not Check(unknown="eager ran out of memory").right
