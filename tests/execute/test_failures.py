"""Backends that fail: the call returns eager's result, the event says what happened, later calls run elsewhere."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from mixbackend.contracts import RegionCompileError, RegionRunError, Unsupported, VerificationError

pytestmark = pytest.mark.smoke


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()


WRONG = {
    "numbers": {"change": lambda outputs: [output * 1.01 for output in outputs]},
    "one element": {"change": lambda outputs: [_poke(output) for output in outputs]},
    "not a number": {"change": lambda outputs: [output * float("nan") for output in outputs]},
    "shape": {"change": lambda outputs: [output[:1] for output in outputs]},
    "dtype": {"change": lambda outputs: [output.double() for output in outputs]},
    "too few": {"change": lambda outputs: outputs[:-1]},
    "too many": {"change": lambda outputs: [*outputs, outputs[0]]},
    "no tensor": {"change": lambda outputs: [None for _ in outputs]},
}


def _poke(output: torch.Tensor) -> torch.Tensor:
    output = output.clone()
    output.view(-1)[0] += 1.0
    return output


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", WRONG)
def test_wrong_result_is_replaced_and_the_region_moves(make_mixture, faulty, loopback, kind):
    backend = faulty(**WRONG[kind])
    mixture = make_mixture(backend, loopback, on_failure="repair")
    module, value = model(), torch.randn(4, 8)
    compiled = torch.compile(module, backend=mixture)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(value), module(value))
    assert backend.calls == 1, "a region found wrong is not called again"
    report = mixture.report().to_dict()
    kinds = [event["kind"] for event in report["events"]]
    assert kinds == ["verify_failed", "repair"]
    assert report["events"][0]["backend"] == "faulty"
    assert "output" in report["events"][0]["detail"]
    owners = {region["backend"] for region in report["graphs"][0]["regions"]}
    assert "faulty" not in owners
    assert {row["code"] for row in report["graphs"][0]["refusals"] if row["backend"] == "faulty"} == {"quarantined"}


@pytest.mark.parametrize("declared", ["as_traced", "contiguous"])
def test_strides_that_are_not_as_declared_are_found(make_mixture, faulty, declared):
    backend = faulty(change=lambda outputs: [output.t().contiguous().t() for output in outputs], strides=declared)
    mixture = make_mixture(backend, on_failure="repair")
    value = torch.randn(4, 8)
    mine = torch.compile(torch.exp, backend=mixture)(value)
    assert mine.stride() == value.stride()
    assert "stride" in mixture.report().to_dict()["events"][0]["detail"]


def test_undeclared_strides_are_put_right_without_an_event(make_mixture, faulty):
    backend = faulty(change=lambda outputs: [output.t().contiguous().t() for output in outputs], strides="unknown")
    mixture = make_mixture(backend)
    value = torch.randn(4, 8)
    mine = torch.compile(torch.exp, backend=mixture)(value)
    assert mine.stride() == value.stride()
    assert mixture.report().events == ()


def test_compile_error_places_only_that_neighbourhood_again(make_mixture, faulty, loopback, caplog):
    backend = faulty(compile_error=ValueError("no kernel"), only="aten.relu.default")
    mixture = make_mixture(backend, loopback, on_failure="repair")
    module, value = model(), torch.randn(4, 8)
    with torch.no_grad(), caplog.at_level(logging.WARNING, logger="mixbackend"):
        compiled = torch.compile(module, backend=mixture)
        for _ in range(2):
            torch.testing.assert_close(compiled(value), module(value))
    events = mixture.report().to_dict()["events"]
    assert [event["kind"] for event in events] == ["quarantine"]
    assert "no kernel" in events[0]["detail"]
    assert "aten.relu.default" in events[0]["detail"]
    assert sum("no kernel" in record.message for record in caplog.records) == 1, "logged once"


def test_run_error_is_answered_by_eager_and_the_region_moves(make_mixture, faulty, loopback):
    backend = faulty(run_error=RuntimeError("device lost"))
    mixture = make_mixture(backend, loopback, on_failure="repair")
    module, value = model(), torch.randn(4, 8)
    compiled = torch.compile(module, backend=mixture)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(value), module(value))
    events = mixture.report().to_dict()["events"]
    assert [event["kind"] for event in events] == ["quarantine", "repair"]
    assert "device lost" in events[0]["detail"]
    assert loopback.calls >= 1


def test_failure_that_begins_after_the_first_call(make_mixture, faulty, loopback):
    backend = faulty()
    mixture = make_mixture(backend, loopback, on_failure="repair")
    module, value = model(), torch.randn(4, 8)
    compiled = torch.compile(module, backend=mixture)
    with torch.no_grad():
        for _ in range(8):
            compiled(value)
        backend._run_error = RuntimeError("out of memory")
        torch.testing.assert_close(compiled(value), module(value))
        torch.testing.assert_close(compiled(value), module(value))
    assert [event["kind"] for event in mixture.report().to_dict()["events"]] == ["quarantine", "repair"]


def test_policy_eager_does_not_try_another_backend(make_mixture, faulty, loopback):
    mixture = make_mixture(faulty(run_error=RuntimeError("no")), loopback, on_failure="eager")
    value = torch.randn(4)
    compiled = torch.compile(torch.exp, backend=mixture)
    torch.testing.assert_close(compiled(value), value.exp())
    torch.testing.assert_close(compiled(value), value.exp())
    assert [region["backend"] for region in mixture.report().to_dict()["graphs"][0]["regions"]] == ["eager"]
    assert loopback.calls == 0


def test_a_backward_that_fails_gives_eagers_gradients(make_mixture, faulty):
    backend = faulty(run_error=RuntimeError("no backward"), only="aten.threshold_backward.default")
    mixture = make_mixture(backend, on_failure="repair")
    module = model().train()
    value = torch.randn(4, 8)
    torch.compile(module, backend=mixture)(value).sum().backward()
    mine = [parameter.grad.clone() for parameter in module.parameters()]
    module.zero_grad()
    module(value).sum().backward()
    for gradient, parameter in zip(mine, module.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"compile_error": ValueError("no kernel")}, RegionCompileError),
        ({"run_error": RuntimeError("device lost")}, RegionRunError),
        ({"change": lambda outputs: [output + 1 for output in outputs]}, VerificationError),
    ],
    ids=["compile", "run", "verify"],
)
def test_policy_raise_names_backend_region_op_and_line(make_mixture, faulty, settings, error):
    def function(value):
        return value.exp() * 2

    compiled = torch.compile(function, backend=make_mixture(faulty(**settings)))
    with pytest.raises(Exception) as caught:
        compiled(torch.randn(4))
    cause = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(cause, error)
    for part in ("'faulty'", "inference-0/r0", "aten.exp.default", "test_failures.py:", "in function"):
        assert part in str(cause)


def test_quarantine_is_remembered_by_the_next_process(make_mixture, faulty, loopback):
    value = torch.randn(4)
    first = make_mixture(faulty(run_error=RuntimeError("bad driver")), loopback, on_failure="repair")
    torch.compile(torch.exp, backend=first)(value)
    torch._dynamo.reset()
    healthy = faulty()
    second = make_mixture(healthy, loopback, on_failure="repair")
    torch.testing.assert_close(torch.compile(torch.exp, backend=second)(value), value.exp())
    assert healthy.compiled == []
    assert "bad driver" in second.report().to_dict()["events"][0]["detail"]


def test_each_process_verifies_once_until_three_have(make_mixture, loopback, monkeypatch):
    from mixbackend.execute import checked_call
    from mixbackend.host.process_facts import reset_for_tests

    checks = []
    verify = checked_call.check_region
    monkeypatch.setattr(checked_call, "check_region", lambda *arguments: checks.append(1) or verify(*arguments))
    value = torch.randn(4)
    for _ in range(5):
        torch._dynamo.reset()
        reset_for_tests()
        compiled = torch.compile(torch.exp, backend=make_mixture(loopback))
        compiled(value)
        compiled(value)
    assert len(checks) == 3


@pytest.mark.parametrize(("when", "expected"), [("off", 0), ("first_call", 1), ("always", 5)])
def test_when_results_are_verified(make_mixture, loopback, monkeypatch, when, expected):
    from mixbackend.execute import checked_call

    checks = []
    verify = checked_call.check_region
    monkeypatch.setattr(checked_call, "check_region", lambda *arguments: checks.append(1) or verify(*arguments))
    compiled = torch.compile(torch.exp, backend=make_mixture(loopback, verify={"when": when}))
    for _ in range(5):
        compiled(torch.randn(4))
    assert len(checks) == expected


def test_regions_below_the_users_minimum_go_elsewhere(make_mixture, loopback):
    mixture = make_mixture(loopback, min_region={"loopback": 3})
    torch.compile(lambda value: value.exp().sin(), backend=mixture)(torch.randn(4))
    graph = mixture.report().to_dict()["graphs"][0]
    assert {region["backend"] for region in graph["regions"]} == {"eager"}
    assert {row["code"] for row in graph["refusals"]} == {"region-too-small"}
    torch.compile(lambda value: value.exp().sin().cos(), backend=mixture)(torch.randn(4))
    assert {region["backend"] for region in mixture.report().to_dict()["graphs"][1]["regions"]} == {"loopback"}


def test_advice_names_the_refusal_that_costs_most(make_mixture, faulty):
    class Reluctant(faulty):
        def judge(self, view):
            if view.op == "aten.sin.default":
                return Unsupported("declined", "no sine yet")
            return super().judge(view)

    mixture = make_mixture(Reluctant())
    torch.compile(lambda value: value.exp().sin().cos(), backend=mixture)(torch.randn(4))
    (advice,) = mixture.report(advice=True).graphs[0].advice
    assert advice.op == "aten.sin.default"
    assert advice.seconds > 0
    assert str(advice) in " ".join(mixture.report(advice=True).to_text(width=400).split())
    assert mixture.report().graphs[0].advice == ()


def test_fuel_bisects(make_mixture, loopback, monkeypatch):
    monkeypatch.setenv("MIXBACKEND_FUEL", "1")
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)).train()
    torch.compile(module, backend=make_mixture(loopback))(torch.randn(2, 4))
    assert len(loopback.compiled) == 1


def test_dump_holds_every_stage_and_a_script_that_runs_alone(make_mixture, loopback, monkeypatch, tmp_path):
    import subprocess
    import sys

    monkeypatch.setenv("MIXBACKEND_DUMP", str(tmp_path / "dump"))
    mixture = make_mixture(loopback, backends=["eager"])
    torch.compile(model(), backend=mixture)(torch.randn(4, 8))
    folder = tmp_path / "dump" / "forward-0"
    names = {path.name for path in folder.iterdir()}
    assert {"00_capture.txt", "10_describe.txt", "20_place.txt", "30_cut.txt", "50_stitch.txt", "repro.py"} <= names
    result = subprocess.run(
        [sys.executable, str(folder / "repro.py")], capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "largest difference from eager: 0" in result.stdout
