"""Calibration beside the processor: both sides of a backend are found, in a time that all backends share.

No accelerator is needed: probes lie in the processor's memory, and a backend lets a clock pass as long as its stated
rates say, those of the device where calls are replayed and those of the processor where they are queued.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from mixbackend.calibrate import backend_rates as rates_module
from mixbackend.calibrate.backend_rates import measure_rates
from mixbackend.calibrate.budget import TimeLeft
from mixbackend.calibrate.calibration import calibrated_costs
from mixbackend.calibrate.prober import Instruments
from mixbackend.calibrate.structural import structural_probes
from mixbackend.calibrate.timing import time_calls
from mixbackend.contracts import BackendRates, CompiledRegion, DeviceModel, HostRates, OpRate, Probe, Region, Traits
from mixbackend.contracts.probes import standard_probes
from mixbackend.cost.priors import anchored, prior_rates
from mixbackend.cost.records import rates_record, read_rates, read_unfinished, unfinished_record
from mixbackend.cost.switches import SWITCH
from mixbackend.storage import Database

from .conftest import DEVICE, FLOPS_PER_S, OVERHEAD_S, Clock, KnownBackend, computing

PEAKS = (("float32", 1e11), ("float16", 4e11), ("bfloat16", 2e11))
GPU = replace(DEVICE, device="cuda:0 test", flops_per_s=PEAKS, transfer_s=1e-5, transfer_bytes_per_s=1e10)
ON_CUDA = Traits(device_types=frozenset({"cuda"}))
HOST_ENTRY_S, HOST_CROSSING_S, HOST_OP_S = 2e-5, 3e-7, 9e-6


@dataclass
class Sides:
    """Which side's seconds pass: calls are replayed unless they are timed one by one."""

    replayed: bool = True


@dataclass
class QueuedBackend(KnownBackend):
    """Costs the processor other seconds than the device."""

    sides: Sides = field(default_factory=Sides)
    traits_: Traits = ON_CUDA

    def traits(self) -> Traits:
        return self.traits_

    def probes(self, device: DeviceModel) -> tuple[Probe, ...]:
        halves = [replace(probe, dtype="float16") for probe in standard_probes(DEVICE)[:3]]
        return (*halves, *standard_probes(DEVICE))

    def compile(self, region: Region) -> CompiledRegion:
        compiled = super().compile(region)
        ops = sum(1 for view in region.views if view.op_class != "view")
        computed = computing(region)
        queueing = HOST_ENTRY_S + HOST_CROSSING_S * (len(region.inputs) + len(region.outputs)) + HOST_OP_S * ops

        def run(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
            if self.sides.replayed:
                return compiled.run(inputs)
            self.clock.advance(queueing)
            return computed(inputs)

        return CompiledRegion(run)


class Reference(QueuedBackend):
    name: ClassVar[str] = "reference"


class Other(QueuedBackend):
    name: ClassVar[str] = "other"


@pytest.fixture(autouse=True)
def sides(monkeypatch: pytest.MonkeyPatch) -> Sides:
    """Probes in the processor's memory, and a note of what is being timed."""
    sides = Sides()

    def timed(calls: Any, seconds: float, synchronize: Any, clock: Any, replayed: bool) -> Any:
        sides.replayed = replayed
        try:
            return time_calls(calls, seconds, None, clock)
        finally:
            sides.replayed = True

    monkeypatch.setattr(rates_module, "time_calls", timed)
    monkeypatch.setattr(rates_module, "synchronizer", lambda device_type: None)

    def on_the_processor(place: torch.device, binds: bool) -> dict[str, Probe]:
        """Those that an accelerator has: kinds of convolutions are told apart on processors alone."""
        every = structural_probes(torch.device("cpu"), binds)
        return {name: every[name] for name in structural_probes(torch.device("meta"), binds)}

    monkeypatch.setattr(rates_module, "structural_probes", on_the_processor)
    return sides


def measure(backend: QueuedBackend, **options: Any) -> Any:
    return measure_rates(backend, GPU, prior_rates(backend, GPU), clock=backend.clock, **options)


def test_both_sides_are_found(sides: Sides) -> None:
    rates = measure(QueuedBackend(sides=sides)).rates
    assert rates.rate("matmul", "float32").overhead_s == pytest.approx(OVERHEAD_S, rel=0.05)
    assert rates.rate("matmul", "float32").flops_per_s == pytest.approx(FLOPS_PER_S, rel=0.05)
    assert rates.host.entry_s == pytest.approx(HOST_ENTRY_S, rel=0.05)
    assert rates.host.crossing_s == pytest.approx(HOST_CROSSING_S, rel=0.05)
    for row in ("matmul", "convolution", "pointwise"):
        assert rates.host.op(row) == pytest.approx(HOST_OP_S, rel=0.05)


def test_a_chain_of_fused_loops_does_not_tell_what_a_kernel_costs(sides: Sides) -> None:
    fusing = Traits(device_types=frozenset({"cuda"}), fused=frozenset({("pointwise", "pointwise")}))
    backend = QueuedBackend(sides=sides, traits_=fusing)
    assert measure(backend).rates.host.op("pointwise") == prior_rates(backend, GPU).host.op("pointwise")


def test_one_half_type_tells_about_the_other(sides: Sides) -> None:
    rates = measure(QueuedBackend(sides=sides)).rates
    first, second = rates.rate("matmul", "float16"), rates.rate("matmul", "bfloat16")
    assert second.provenance == "probed"
    assert second.flops_per_s == pytest.approx(first.flops_per_s / 2)


# --- in the time that there is ---------------------------------------------------------------------------------------


def test_what_was_left_is_gone_on_with(sides: Sides) -> None:
    whole = measure(QueuedBackend(sides=sides)).rates
    backend = QueuedBackend(sides=sides, compile_s=1.0)
    done = measure(backend, compile_budget_s=12.5)
    assert len(done.left) > 5 and any("not probed" in note for note in done.notes)
    stored = {**rates_record(done.rates), **unfinished_record(done.unfinished)}
    again = QueuedBackend(sides=sides)
    rest = measure(again, earlier=read_unfinished(stored))
    assert len(again.compiled) == len(done.left) and not rest.left and rest.unfinished is None
    found = {(row, dtype): rate for row, dtype, rate in rest.rates.rates}
    for row, dtype, rate in whole.rates:
        assert found[row, dtype].flops_per_s == pytest.approx(rate.flops_per_s, rel=1e-6), (row, dtype)
    assert rest.rates.entry_s == pytest.approx(whole.entry_s)
    assert rest.rates.host.op("matmul") == pytest.approx(whole.host.op("matmul"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("change", [{"left": []}, {"fixed": {"entry_s": 1.0}}, {"fixed": None}, {"version": 1}])
def test_what_does_not_fit_is_begun_anew(change: dict[str, Any], sides: Sides) -> None:
    done = measure(QueuedBackend(sides=sides, compile_s=1.0), compile_budget_s=12.5)
    stored = {**rates_record(done.rates), **unfinished_record(done.unfinished)}
    assert read_unfinished(stored) == done.unfinished
    assert read_unfinished({**stored, **change}) is None


def test_time_is_shared_equally() -> None:
    clock = Clock()
    left = TimeLeft(60.0, 3, clock)
    first = left.take()
    assert first.left_s == 20.0 and first.probes_s < 20.0
    clock.advance(5.0)
    assert first.left_s == 15.0
    assert left.take().left_s == 27.5
    clock.advance(100.0)
    assert left.take().probes_s == 0.0


def accelerator(clock: Clock) -> Instruments:
    """A machine with an accelerator, on which only compiling takes time; blocks of models are left out."""

    def timed(*arguments: Any, **options: Any) -> Any:
        return measure_rates(*arguments, clock=clock, **options)

    return Instruments(
        device_name=lambda _: GPU.device,
        measure_device=lambda _: (GPU, True),
        measure_rates=timed,
        blocks=False,
        clock=clock,
    )


def test_no_backend_takes_the_time_of_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sides: Sides) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    shared_clock = Clock()
    instruments = accelerator(shared_clock)
    reference = Traits(device_types=frozenset({"cuda"}), reference=True)
    slow = Traits(device_types=frozenset({"cuda"}), decomposition="inductor")

    def process(budget_s: float) -> tuple[Any, dict[str, int]]:
        backends = [
            QueuedBackend(clock=shared_clock, sides=sides, compile_s=4.0, traits_=slow),
            Reference(clock=shared_clock, sides=sides, compile_s=0.01, traits_=reference),
            Other(clock=shared_clock, sides=sides, compile_s=0.1),
        ]
        database = Database(tmp_path / "rates.sqlite")
        model = calibrated_costs(backends, "cuda", database, budget_s=budget_s, instruments=instruments)
        return model, {item.name: len(item.compiled) for item in backends}

    begin = shared_clock.now
    model, first = process(60.0)
    assert shared_clock.now - begin < 75.0
    assert model.rates["reference"].rate("scatter", "float32").provenance == "probed"
    assert model.rates["other"].rate("scatter", "float32").provenance == "probed"
    assert model.rates["known"].rate("scatter", "float32").provenance == "prior"
    model, second = process(600.0)
    assert (second["reference"], second["other"]) == (0, 0)
    # The structural probes are not run again.
    assert first["known"] + second["known"] == first["reference"]
    assert model.rates["known"].rate("scatter", "float32").provenance == "probed"
    assert process(600.0)[1] == {"known": 0, "reference": 0, "other": 0}


# --- what is assumed -------------------------------------------------------------------------------------------------


def test_what_is_assumed_is_held_against_what_was_assumed() -> None:
    host = HostRates(1e-6, 1e-7, 5e-6)
    prior = BackendRates("b", 0.0, 0.0, rates=(("matmul", "float16", OpRate(1e-6, 4e14)),), host=host)
    assumed = BackendRates("eager", 0.0, 0.0, rates=(("matmul", "float16", OpRate(1e-6, 5e14)),), host=host)
    known = BackendRates("eager", 0.0, 0.0, 1.2, (("matmul", "float16", OpRate(1e-6, 3e14, "probed")),), host=host)
    found = anchored(prior, assumed, known)
    assert found.rate("matmul", "float16").flops_per_s == pytest.approx(2.4e14)
    assert found.memory_scale == pytest.approx(1.2)
    guessed = replace(known, rates=(("matmul", "float16", OpRate(1e-6, 3e14)),), memory_scale=1.0)
    assert anchored(prior, assumed, guessed) == prior


def test_backends_that_state_one_figure_mean_the_processor() -> None:
    class Vendor(QueuedBackend):
        def prior(self, device: DeviceModel) -> BackendRates:
            return BackendRates("known", 3e-5, 1e-6, rates=(("matmul", "float16", OpRate(2e-5, 1e14)),))

    rates = prior_rates(Vendor(), GPU)
    assert (rates.entry_s, rates.crossing_s) == (0.0, 0.0)
    assert rates.rate("matmul", "float16").overhead_s < 5e-6
    assert (rates.host.entry_s, rates.host.op("matmul"), rates.host.op("softmax")) == (3e-5, 2e-5, GPU.launch_s)


def test_the_processors_side_is_kept() -> None:
    rates = BackendRates("b", 0.0, 0.0, host=HostRates(1e-6, 0.0, 5e-6, (("matmul", 8e-6),)))
    assert read_rates(rates_record(rates)) == rates
    assert (
        read_rates({**rates_record(rates), "host": {"entry_s": -1.0, "crossing_s": 0, "op_s": 0, "rows": []}}) is None
    )


# --- marks of a GPU --------------------------------------------------------------------------------------------------


def test_replays_are_timed_by_the_gpus_own_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = now[0]

        def synchronize(self) -> None:
            now[0] += 3.0

        def elapsed_time(self, other: Event) -> float:
            return other.at - self.at

    def replay() -> None:
        now[0] += 0.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    calls = [lambda: pytest.fail("it is replayed")]
    (timing,) = time_calls(calls, 0.01, lambda: None, record=lambda call: replay)
    # Ten calls in half a millisecond; what waiting for the end takes does not count.
    assert timing.seconds == pytest.approx(5e-5) and timing.settled
