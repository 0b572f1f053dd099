"""B1: whatever calls a graph more often than the user did starts from the inputs as they were, each time: a counter
that is an index into a table of few rows stays in it, at the first call's comparison (processor, and GPU by stand-ins),
in the processes that tune, and where recording a CUDA graph fails."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flat_costs import FlatCosts
from stand_in_backends import Sleeper, try_at_once

from mixbackend.backends.eager import EagerBackend
from mixbackend.compile import trial_worker as worker
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.cost import costs as costs_module
from mixbackend.cost.costs import SessionCosts
from mixbackend.execute.cuda_graphs.recording import RecordedSegment
from mixbackend.graph.trace import trace_graph, trace_region
from mixbackend.plan.choice import Choice
from mixbackend.plan.environment import Environment
from mixbackend.registry import isolated_registry
from mixbackend.select import comparison, comparison_gpu, gpu_block, gpu_memory, tuner
from mixbackend.select.live import processor_challengers
from mixbackend.select.request import TrialRequest
from mixbackend.select.values import write_values

aten = torch.ops.aten
ROWS = 2


class Cursor(torch.nn.Module):
    """A static cache in small: a call writes at the cursor's place, reads there, draws, and moves the cursor."""

    def __init__(self, rows: int = ROWS, draws: bool = False) -> None:
        super().__init__()
        self.draws = draws
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("rows", torch.arange(4.0 * rows).reshape(rows, 4) / rows)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row = self.rows.index_select(0, self.place) + x
        self.rows.index_copy_(0, self.place, row)
        self.place.add_(1)
        return torch.dropout(row.exp(), 0.5, True) if self.draws else row.exp()


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes mixtures whose graphs are compared at the first call, whatever they cost."""
    monkeypatch.setattr(costs_module, "cost_model", lambda *_, **__: FlatCosts(seconds={"eager": 1e-3}))
    monkeypatch.setattr(processor_challengers, "LEAST_S", 0.0)
    monkeypatch.setattr(comparison_gpu, "LEAST_S", 0.0)
    monkeypatch.setattr(
        SessionCosts, "comparable", lambda self, graph: {item.name for item in self.backends} - {EagerBackend.name}
    )
    backends = [Sleeper("slow", 0.002, build_s=0.5), Sleeper("quick", 0.0, build_s=0.5)]
    with isolated_registry(*backends, EagerBackend()):

        def mixture(**options: Any) -> Mixture:
            names = [*(item.name for item in backends), "eager"]
            return Mixture(load_config({"backends": names, "cache": {"dir": str(tmp_path / "cache")}, **options}))

        yield mixture


def _calls_agree(mixture: Mixture, draws: bool = False, calls: int = ROWS) -> None:
    mine, eagers = Cursor(calls, draws), Cursor(calls, draws)
    compiled, x = torch.compile(mine, backend=mixture, dynamic=False), torch.ones(4)
    with torch.no_grad():
        for _ in range(calls):
            torch.manual_seed(3)
            result, following = compiled(x), torch.rand(2)
            torch.manual_seed(3)
            torch.testing.assert_close(result, eagers(x), rtol=0, atol=0)
            torch.testing.assert_close(following, torch.rand(2), rtol=0, atol=0)
    for name, value in eagers.named_buffers():
        torch.testing.assert_close(mine.get_buffer(name), value, rtol=0, atol=0)


def _took(mixture: Mixture) -> str:
    return next(event.detail for event in mixture.report().events if event.kind == "tuning")


@pytest.mark.parametrize("draws", [False, True])
def test_trying_on_the_processor_never_moves_the_cursor_on(
    make: Any, draws: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_at_once(monkeypatch)
    mixture = make(on_failure="raise")
    _calls_agree(mixture, draws, calls=150)
    told = [event.detail for event in mixture.report().events if event.kind == "tuning"]
    assert any(detail.startswith("quick took the place of mixture") for detail in told)


def test_versions_of_written_inputs_count_the_users_calls_alone(make: Any) -> None:
    mine = Cursor()
    compiled = torch.compile(mine, backend=make(on_failure="raise"), dynamic=False)
    with torch.no_grad():
        first = mine.place._version
        compiled(torch.ones(4))
        by_comparing = mine.place._version - first
        compiled(torch.ones(4))
        assert mine.place._version - first == 2 * by_comparing


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processor is taken for a GPU; says in how large blocks was timed."""
    blocks: list[int] = []

    def by_marks(call: Any, count: int, before: Any = None) -> float:
        blocks.append(count)
        for _ in range(count):
            if before is not None:
                before()
            call()
        return count * 1e-3

    monkeypatch.setattr(comparison, "gpu_of", lambda captured: 0)
    monkeypatch.setattr(comparison_gpu, "device_of", lambda graph: 0)
    monkeypatch.setattr(gpu_memory, "free_bytes", lambda device: 1 << 30)
    monkeypatch.setattr(gpu_block, "seconds_by_marks", by_marks)
    monkeypatch.setattr(gpu_block, "BLOCK_S", 5e-3)
    monkeypatch.setattr(comparison_gpu, "cuda_graphs_apart", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda number: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    fork = torch.random.fork_rng
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: fork([]))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda number: torch.zeros(1))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, number: None)
    monkeypatch.setattr(Environment, "device", lambda self, graph: "cuda:0 test")
    monkeypatch.setattr(tuner, "why_untunable", lambda environment: "")
    return blocks


@pytest.mark.parametrize("draws", [False, True])
def test_a_comparison_as_on_a_gpu_never_moves_the_cursor_on(make: Any, as_on_a_gpu: list[int], draws: bool) -> None:
    mixture = make(on_failure="raise", search={"mode": "measure"})
    _calls_agree(mixture, draws)
    assert _took(mixture).startswith("took ")
    assert max(as_on_a_gpu) > 3, "blocks of many calls were timed"


def test_calls_in_a_tuning_process_never_move_the_cursor_on(tmp_path: Path) -> None:
    def step(place: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        row = aten.index_select(table, 0, place)
        aten.copy_(place, aten.add(place, 1))
        return aten.exp(row)

    place, table = torch.zeros(1, dtype=torch.int64), torch.randn(1, 4)
    region = trace_region(step, [place, table])
    assert len(region.written) == 1
    values = [place if item.meta.dtype == place.dtype else table for item in region.inputs]
    request = TrialRequest(tmp_path, Choice(), 0)
    request.graph_file.write_text(region.text)
    settings = {"backends": ["eager"], "cache": {"dir": str(tmp_path / "cache")}}
    request.config_file.write_text(load_config(settings).model_dump_json())
    write_values(tmp_path, values)
    mixture, run = worker._compiled(request)
    worker._warm_up(run)
    worker._time_regions(mixture, run)
    assert worker.time_slice(run, 0.01)["status"] == "pass"


def test_a_call_whose_recording_fails_is_answered_from_inputs_as_they_were() -> None:
    counter = torch.zeros(2)
    told: list[str] = []

    def warm_up(inputs: list[Any]) -> list[Any]:
        inputs[0].add_(1.0)
        raise RuntimeError("in the middle")

    def guarded(inputs: list[Any]) -> list[Any]:
        inputs[0].add_(1.0)
        return [inputs[0].clone()]

    def segment() -> RecordedSegment:
        return RecordedSegment(
            warm_up, guarded, lambda: None, lambda error: told.append(str(error)), written={0: "counter"}
        )

    assert segment()([counter])[0].tolist() == counter.tolist() == [1.0, 1.0]
    assert told == ["in the middle"]


def test_where_restoring_is_dearer_than_running_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of gigabytes beside a run of a millisecond: the rule is by bytes, before anything is compiled."""
    _, graph = trace_graph(
        lambda cache, x: (aten.copy_(cache, aten.add(cache, x)), aten.exp(x)), [torch.zeros(8), torch.zeros(8)]
    )
    names = tuple(item.name for item in graph.inputs)
    home = SimpleNamespace(graph=graph, plan=SimpleNamespace(estimated_s=1e-3))
    monkeypatch.setattr(gpu_memory, "free_bytes", lambda device: 1 << 50)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    huge = torch.empty(1).expand(1 << 32)  # of which no memory is held
    gpu = comparison_gpu.GpuHarness(60.0, 0, True, names)
    monkeypatch.setattr(processor_challengers, "memory_bytes", lambda: 1 << 60)
    for why_not in (
        lambda values: processor_challengers.why_not_now(home, names, values),
        lambda values: gpu.why_not(home, values, 2),
    ):
        assert why_not([torch.zeros(8), torch.zeros(8)]) == ""
        assert "put back" in why_not([huge, torch.zeros(8)])
