"""Tuning: plans of a kernel against one another, by a clock that need not be a GPU's; what is remembered, and where."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from triton_programs import HARDWARE, program_of

from mixbackend.backends.codegen.backend import CodegenBackend
from mixbackend.backends.codegen.ir.program import Program
from mixbackend.backends.codegen.targets.triton import availability
from mixbackend.backends.codegen.targets.triton.printing import PrintedKernel
from mixbackend.backends.codegen.targets.triton.target import TritonTarget
from mixbackend.backends.codegen.targets.triton.tuning import Clock, Trial, Tuner, fastest
from mixbackend.contracts import Availability

pytest.importorskip("triton", reason="Triton is not installed")

Seconds = Callable[[PrintedKernel, int], float]


class FakeClock:
    """Seconds by a rule; counts the trials."""

    def __init__(self, rule: Seconds) -> None:
        self.trials: list[Trial] = []
        self._rule = rule

    def __call__(self, trial: Trial) -> list[float]:
        self.trials.append(trial)
        return [self._rule(way, place) for place, way in enumerate(trial.ways)]


def tuner(clock: Clock | None, folder: Path | None = None) -> Tuner:
    return Tuner(clock, "a machine", None if folder is None else lambda: folder)


def compiled(made: Tuner | None, program: Program) -> Any:
    return TritonTarget(HARDWARE, tuner=made).compile(program)


def texts(made: Tuner | None, name: str = "layer_norm") -> str:
    return str(compiled(made, program_of(name, torch.float32)).source)


def last(way: PrintedKernel, place: int) -> float:
    return 1.0 / (1 + place)


def test_the_fastest_plan_is_compiled() -> None:
    clock = FakeClock(last)
    assert texts(tuner(clock), "product") != texts(None, "product")
    (trial,) = clock.trials
    assert len(trial.ways) > 2 and trial.memory == ((torch.float32, 2800), (torch.float32, 3500), (torch.float32, 2000))


@pytest.mark.parametrize(
    ("seconds", "place"),
    [([1.0, 0.9], 1), ([1.0, 0.99], 0), ([math.inf, 0.9, 0.8], 2), ([1.0, math.inf], 0), ([math.inf] * 2, 0)],
)
def test_another_plan_has_to_be_clearly_faster(seconds: Sequence[float], place: int) -> None:
    assert fastest(seconds) == place


def test_a_kernel_is_measured_once_per_machine(tmp_path: Path) -> None:
    clock = FakeClock(last)
    first = tuner(clock, tmp_path)
    found = texts(first)
    assert texts(first) == found and texts(tuner(clock, tmp_path)) == found
    assert len(clock.trials) == 1
    (kept,) = tmp_path.glob("*.json")
    assert json.loads(kept.read_text())["place"] == len(clock.trials[0].ways) - 1


def test_without_a_clock_what_was_measured_counts(tmp_path: Path) -> None:
    clock = FakeClock(last)
    found = texts(tuner(clock, tmp_path), "product")
    assert texts(tuner(None, tmp_path), "product") == found != texts(None, "product")
    assert texts(tuner(None, tmp_path), "softmax") == texts(None, "softmax")


def test_another_machine_measures_for_itself(tmp_path: Path) -> None:
    clock = FakeClock(last)
    texts(tuner(clock, tmp_path))
    texts(Tuner(clock, "another machine", lambda: tmp_path))
    assert len(clock.trials) == 2


@pytest.mark.parametrize("content", ["", "{}", '{"place": 99}', '{"place": "1"}', "[1]"])
def test_what_cannot_be_read_is_measured_again(content: str, tmp_path: Path) -> None:
    clock = FakeClock(last)
    found = texts(tuner(clock, tmp_path))
    (kept,) = tmp_path.glob("*.json")
    kept.write_text(content)
    assert texts(tuner(clock, tmp_path)) == found
    assert len(clock.trials) == 2


def test_where_nothing_runs_the_model_decides_and_nothing_is_remembered(tmp_path: Path) -> None:
    clock = FakeClock(lambda way, place: math.inf)
    assert texts(tuner(clock, tmp_path)) == texts(None)
    assert list(tmp_path.iterdir()) == []


def test_sizes_that_are_symbols_keep_the_model_s_plan() -> None:
    clock = FakeClock(last)
    assert texts(tuner(clock), "symbolic_rows") == texts(None, "symbolic_rows")
    assert clock.trials == []


def test_places_that_only_values_tell_are_not_measured() -> None:
    clock = FakeClock(last)
    texts(tuner(clock), "embedding")
    assert clock.trials == []


def test_every_plan_can_be_compiled() -> None:
    from mixbackend.backends.codegen.targets.triton.compiler import compile_texts

    clock = FakeClock(last)
    for name in ("gelu_bias_residual", "transposed_copy", "cumulative_sum", "column_sum"):
        texts(tuner(clock), name)
    for trial in clock.trials:
        assert compile_texts([way.text for way in trial.ways], HARDWARE.architecture)


def test_where_candidates_are_measured_estimated_artifacts_are_made_anew() -> None:
    program = program_of("softmax", torch.float32)
    estimated = compiled(None, program).artifact
    measuring = TritonTarget(HARDWARE, tuner=tuner(FakeClock(last)))
    measured = measuring.compile(program).artifact
    with pytest.raises(FileNotFoundError, match="not measured"):
        measuring.load(program.call_table, estimated)
    assert measuring.load(program.call_table, measured).source == measuring.compile(program).source
    assert TritonTarget(HARDWARE).load(program.call_table, measured).source


def test_processors_have_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    plain = CodegenBackend()
    assert plain.for_measuring() is plain


def test_gpus_are_measured_where_candidates_are(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = CodegenBackend()
    monkeypatch.setattr(CodegenBackend, "targets", {"cuda": TritonTarget(HARDWARE)})
    monkeypatch.setattr(availability, "triton_availability", lambda: Availability(True))
    made = plain.for_measuring()
    assert isinstance(made, CodegenBackend) and made is not plain and made.fingerprint() == plain.fingerprint()
    assert [target._measuring for target in made._candidates if isinstance(target, TritonTarget)] == [True]


@pytest.mark.gpu
def test_a_gpu_measures_its_kernels(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    from mixbackend.backends.codegen.targets.triton.device_clock import device_clock
    from mixbackend.graph.trace import trace_region

    seen: list[list[float]] = []
    hardware = TritonTarget().hardware
    clock = device_clock(lambda: hardware.architecture)

    def noted(trial: Trial) -> list[float]:
        seen.append(clock(trial))
        return seen[-1]

    x, w = (torch.randn(1024, 1024, device="cuda", dtype=torch.float16) for _ in range(2))
    backend = CodegenBackend(TritonTarget(hardware, tuner=tuner(noted, tmp_path)))
    before = torch.cuda.get_rng_state()
    (result,) = backend.compile(trace_region(lambda x, w: x @ w, [x, w])).run([x, w])
    assert torch.equal(torch.cuda.get_rng_state(), before)
    torch.testing.assert_close(result, x @ w, atol=1e-1, rtol=1e-2)
    assert len(seen) == 1 and sum(map(math.isfinite, seen[0])) > 2
