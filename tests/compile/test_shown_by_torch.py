"""What torch's own tools show: ranges of its profiler, code in its logs, plan, code and report in its trace."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from mixbackend.compile import program as program_module
from mixbackend.compile import shown_by_torch
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config

RULES = [
    {"match": {"op": "aten.gelu"}, "require": "codegen"},
    {"match": {"op": "aten.gelu_backward"}, "require": "codegen"},
]


@pytest.fixture
def mixture(tmp_path: Path) -> Mixture:
    given = {"backends": ["codegen", "eager"], "rules": RULES, "select": "off", "cache": {"dir": str(tmp_path)}}
    return Mixture(load_config(given))


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))


def step(compiled: Any, inputs: torch.Tensor) -> None:
    compiled(inputs).square().sum().backward()


def owners(mixture: Mixture) -> list[str]:
    graphs = mixture.report().to_dict()["graphs"]
    pairs = [(graph["id"], region) for graph in graphs for region in graph["regions"]]
    return [f"mixbackend {name}/{region['id']} on {region['backend']}" for name, region in pairs]


def test_the_profiler_shows_graphs_and_regions_forward_and_backward(mixture: Mixture) -> None:
    compiled, inputs = torch.compile(model(), backend=mixture), torch.randn(3, 8)
    step(compiled, inputs)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step(compiled, inputs)
    ranges = {event.name: event for event in seen.events() if event.name.startswith("mixbackend ")}
    assert sorted(ranges) == sorted(["mixbackend forward-0", "mixbackend backward-0", *owners(mixture)])
    assert {name.partition(" on ")[2] for name in ranges} == {"", "codegen", "eager"}
    for name, event in ranges.items():
        graph = ranges[name.partition("/")[0]]
        assert graph.time_range.start <= event.time_range.start <= event.time_range.end <= graph.time_range.end


def test_without_a_profiler_no_range_is_made(mixture: Mixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_range(*_: Any) -> Any:
        raise AssertionError("nobody looks")

    monkeypatch.setattr(program_module, "in_range", in_range)
    compiled, inputs = torch.compile(model(), backend=mixture), torch.randn(3, 8)
    for _ in range(3):
        step(compiled, inputs)
    with pytest.raises(AssertionError, match="nobody looks"), profile(activities=[ProfilerActivity.CPU]):
        step(compiled, inputs)


def test_results_are_the_same_under_a_profiler(mixture: Mixture) -> None:
    compiled, inputs = torch.compile(model(), backend=mixture), torch.randn(3, 8)
    with torch.no_grad():
        before = compiled(inputs)
        with profile(activities=[ProfilerActivity.CPU]):
            assert torch.equal(compiled(inputs), before)
        assert torch.equal(compiled(inputs), before)


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.getMessage(), getattr(record, "metadata", {}), getattr(record, "payload", None)))


@pytest.fixture
def output_code() -> Iterator[Kept]:
    kept = Kept()
    torch._logging.set_logs(output_code=True)
    logging.getLogger("torch").addHandler(kept)
    yield kept
    logging.getLogger("torch").removeHandler(kept)
    torch._logging.set_logs()


def test_output_code_is_that_of_our_regions(mixture: Mixture, output_code: Kept) -> None:
    with torch.no_grad():
        torch.compile(model(), backend=mixture)(torch.randn(3, 8))
    (text,) = [message for message, _, _ in output_code.records if message.startswith("mixbackend ")]
    assert text.startswith("mixbackend inference-0\n# the graph's function\ndef run(arguments):")
    function, heading, kernel = text.partition(" on codegen\n")
    assert heading and "region_0(" in function and "#include" in kernel and "on eager" not in text


@pytest.fixture
def trace() -> Iterator[Kept]:
    kept, log = Kept(), logging.getLogger("torch.__trace")
    log.addHandler(kept)
    yield kept
    log.removeHandler(kept)


def test_plan_code_and_report_are_artifacts_of_the_compilation(mixture: Mixture, trace: Kept) -> None:
    compiled, inputs = torch.compile(model(), backend=mixture), torch.randn(3, 8)
    step(compiled, inputs)
    found = {
        metadata["artifact"]["name"]: (metadata, payload)
        for _, metadata, payload in trace.records
        if metadata.get("artifact", {}).get("name", "").startswith("mixbackend_")
    }
    expected = [
        f"mixbackend_{kind}_{graph}-0" for kind in ("plan", "code", "report") for graph in ("forward", "backward")
    ]
    assert sorted(found) == sorted(expected)
    assert all((metadata["frame_id"], metadata["frame_compile_id"]) == (0, 0) for metadata, _ in found.values())
    assert found["mixbackend_plan_forward-0"][1].startswith("plan for forward-0 phase=forward")
    assert "on codegen\n" in found["mixbackend_code_forward-0"][1]
    assert "backward-0: backward" in found["mixbackend_report_backward-0"][1]


def test_nothing_is_computed_while_nobody_listens(mixture: Mixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def code(_: Any) -> str:
        raise AssertionError("nobody listens")

    monkeypatch.setattr(shown_by_torch, "code_of", code)
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])
    inputs = torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model(), backend=mixture)(inputs), model()(inputs))
    assert mixture.report().events == ()
