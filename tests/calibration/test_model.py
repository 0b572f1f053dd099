"""The cost model of the machine: measured once, remembered, and quiet when told not to measure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mixbackend.calibrate.backend_rates import Calibration, measure_rates
from mixbackend.calibrate.calibration import calibrated_costs, calibrated_device
from mixbackend.calibrate.device import at_least, measure_device
from mixbackend.calibrate.isolated_probe import probe_isolated
from mixbackend.calibrate.prober import Instruments
from mixbackend.contracts import BackendRates, DeviceModel, OpRate, TensorMeta
from mixbackend.cost.device_priors import prior_device
from mixbackend.cost.model import cost_model
from mixbackend.cost.records import device_record, rates_record, read_device, read_rates
from mixbackend.cost.switches import SWITCH
from mixbackend.host.devices import device_name
from mixbackend.storage import Database

from .conftest import DEVICE, KnownBackend


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "test.sqlite")


@pytest.fixture(autouse=True)
def measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing forbids it; without instruments of the test, the fixture of a test would measure this machine."""
    monkeypatch.delenv(SWITCH, raising=False)


@dataclass
class Bench:
    """Costs of a machine whose device stands in for the real one; backends are timed by their own clock.

    Measuring the real device is tested once, below.
    """

    database: Database
    device: DeviceModel = DEVICE
    settled: bool = True
    now: float = 1000.0
    measured: list[str] = field(default_factory=list)

    def costs(self, *backends: KnownBackend, device_type: str = "cpu", **options: Any) -> Any:
        return calibrated_costs(backends, device_type, self.database, instruments=self.instruments(), **options)

    def instruments(self) -> Instruments:
        return Instruments(
            device_name=lambda device_type: device_name("cpu") if device_type == "cpu" else self.device.device,
            measure_device=self._measure_device,
            measure_rates=_timed_by_its_clock,
            now=lambda: self.now,
        )

    def _measure_device(self, device_type: str) -> tuple[DeviceModel, bool]:
        self.measured.append(device_type)
        return self.device, self.settled


def _timed_by_its_clock(backend: Any, *arguments: Any, busy: bool = False, **options: Any) -> Calibration:
    return measure_rates(backend, *arguments, clock=backend.clock, **options)


@pytest.fixture
def bench(database: Database) -> Bench:
    return Bench(database)


def test_measuring_happens_once(bench: Bench) -> None:
    first, second = KnownBackend(), KnownBackend()
    one = bench.costs(first)
    bench.database = Database(bench.database.path)
    two = bench.costs(second)
    assert first.compiled
    assert not second.compiled
    assert bench.measured == ["cpu"]
    assert one.rates == two.rates
    assert one.rates["known"].provenance == "probed"


def test_a_new_fingerprint_is_probed_again(bench: Bench) -> None:
    bench.costs(KnownBackend(version="1"))
    changed = KnownBackend(version="2")
    bench.costs(changed)
    assert changed.compiled


@pytest.mark.nightly
def test_another_thread_count_is_probed_again(bench: Bench) -> None:
    bench.costs(KnownBackend())
    threads, changed = torch.get_num_threads(), KnownBackend()
    torch.set_num_threads(threads + 1)
    try:
        bench.costs(changed)
    finally:
        torch.set_num_threads(threads)
    assert changed.compiled


@pytest.mark.parametrize("how", ["reading", "environment"])
def test_without_measuring_there_are_priors(how: str, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = KnownBackend()
    if how == "environment":
        monkeypatch.setenv(SWITCH, "0")
        model: Any = bench.costs(backend)
    else:
        model = cost_model([backend], "cpu", bench.database)
    assert not backend.compiled
    assert not bench.measured
    assert model.rates["known"].provenance == "prior"
    assert model.device == prior_device("cpu")
    assert bench.database.all_rates() == ()


def test_what_was_measured_before_is_read_without_measuring(bench: Bench) -> None:
    """The same numbers: rows keep every figure in full."""
    measured = bench.costs(KnownBackend())
    later: Any = cost_model([KnownBackend()], "cpu", bench.database)
    assert later.rates["known"].provenance == "probed"
    assert (later.rates, later.device) == (measured.rates, measured.device)


def test_a_busy_machine_is_measured_again_later(bench: Bench) -> None:
    bench.settled = False
    for later, count in ((0.0, 1), (60.0, 1), (3600.0, 2)):
        bench.now += later
        calibrated_device("cpu", bench.database, instruments=bench.instruments())
        assert len(bench.measured) == count


def test_notes_are_reported_and_kept(bench: Bench) -> None:
    told: list[tuple[str, str]] = []
    backend = KnownBackend(refused=frozenset({"aten._softmax.default"}))
    bench.costs(backend, report=lambda *note: told.append(note))
    assert any(name == "known" and "softmax" in note for name, note in told)
    assert any("s of compiling" in note for _, note in told)


def test_backends_of_other_devices_are_not_probed(bench: Bench) -> None:
    backend = KnownBackend()
    bench.device = DeviceModel("cuda:0 big", (("float32", 1e13),), 1, 1, 1, 1, 1)
    bench.costs(backend, device_type="cuda")
    assert not backend.compiled


@pytest.mark.alone
def test_the_real_device_is_measured_in_seconds() -> None:
    device, _ = measure_device("cpu")
    assert device.provenance == "probed"
    assert device.device.startswith("cpu")
    assert device.peak("float32") > 1e8
    assert device.peak("float32") >= device.peak("float64")
    assert device.cache_bytes_per_s >= device.bytes_per_s > 1e7
    assert 1e-8 < device.launch_s < 1e-2
    meta = TensorMeta((10,), (1,), torch.float32, torch.device("cpu"))
    assert meta.bytes() / device.bandwidth(meta.bytes()) > 0


def test_a_busy_device_is_assumed_to_be_no_slower_than_usual() -> None:
    prior = prior_device("cpu")
    stalled = DeviceModel(prior.device, (("float32", 1e6), ("bfloat16", 1e15)), 1.0, 1e12, 1.0, 1.0, 2, "probed")
    repaired = at_least(stalled, prior)
    assert repaired.peak("float32") == prior.peak("float32")
    assert repaired.peak("bfloat16") == 1e15
    assert (repaired.bytes_per_s, repaired.launch_s) == (prior.bytes_per_s, prior.launch_s)


# --- records ---------------------------------------------------------------------------------------------------------

RATES = BackendRates("b", 1e-6, 0.0, 1.5, (("matmul", "float32", OpRate(0.0, 1e9, "probed")),), "probed")


def test_records_round_trip_through_json() -> None:
    assert read_device(json.loads(json.dumps(device_record(DEVICE)))) == DEVICE
    assert read_rates(json.loads(json.dumps(rates_record(RATES)))) == RATES


@pytest.mark.parametrize(
    "change",
    [
        {"entry_s": -1.0},
        {"entry_s": "much"},
        {"memory_scale": 0.0},
        {"memory_scale": float("nan")},
        {"provenance": "hearsay"},
        {"rates": [["cooking", "float32", 0.0, 1.0, "prior"]]},
        {"rates": [["matmul", "float32", 0.0]]},
        {"rates": None},
        {"rates": [["convolution/constant/grouped", "float32", 0.0, 1.0, "prior"]]},
        {"version": 1},
        {"version": None},
    ],
)
def test_rates_that_do_not_fit_count_as_missing(change: dict[str, Any]) -> None:
    assert read_rates({**rates_record(RATES), **change}) is None
    assert read_rates({}) is None
    assert read_rates(None) is None


@pytest.mark.parametrize(
    "change", [{"flops_per_s": {}}, {"flops_per_s": [1]}, {"bytes_per_s": 0}, {"launch_s": None}, {"threads": "two"}]
)
def test_devices_that_do_not_fit_count_as_missing(change: dict[str, Any]) -> None:
    assert read_device({**device_record(DEVICE), **change}) is None
    assert read_device(None) is None


def test_a_backend_that_fails_in_its_own_process_keeps_its_prior_and_is_not_probed_again(bench: Bench) -> None:
    asked: list[str] = []

    def crash(name: str, device_type: str, path: object) -> str:
        asked.append(name)
        return "crash: signal SIGSEGV"

    instruments = replace(bench.instruments(), probe_isolated=crash)
    told: list[tuple[str, str]] = []
    backend = KnownBackend()
    for _ in range(2):
        model: Any = calibrated_costs(
            [backend],
            "cpu",
            bench.database,
            isolated=("known",),
            report=lambda name, note: told.append((name, note)),
            instruments=instruments,
        )
        assert model.rates["known"].provenance == "prior"
    assert asked == ["known"] and not backend.compiled
    assert told == [("known", "not probed, its process did not end well: crash: signal SIGSEGV")]


def test_a_process_that_probes_says_what_went_wrong(tmp_path: Any) -> None:
    problem = probe_isolated("no such backend", "cpu", tmp_path / "rates.sqlite")
    assert problem.startswith("failed: UnknownBackendError")
