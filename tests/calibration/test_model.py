"""The cost model of the machine: measured once, remembered, and quiet when told not to measure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mixbackend.calibrate.backend_rates import Calibration, measure_rates
from mixbackend.calibrate.device import measure_device, prior_device
from mixbackend.calibrate.isolated_probe import probe_apart
from mixbackend.contracts import BackendRates, DeviceModel, Estimate, OpRate, TensorMeta
from mixbackend.cost import model as model_module
from mixbackend.cost.model import SWITCH, cost_model, device_model
from mixbackend.cost.records import device_record, rates_record, read_device, read_rates
from mixbackend.storage import Database, Measurement

from .conftest import DEVICE, KnownBackend


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "test.sqlite")


@pytest.fixture(autouse=True)
def quick_device(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measuring the real device is tested once, below; backends are timed by their own clock."""
    measured: list[str] = []

    def timed_by_its_clock(backend: KnownBackend, *arguments: Any, busy: bool, **options: Any) -> Calibration:
        return measure_rates(backend, *arguments, clock=backend.clock, **options)

    monkeypatch.setattr(model_module, "measure_rates", timed_by_its_clock)

    def stand_in(device_type: str) -> tuple[DeviceModel, bool]:
        measured.append(device_type)
        return DEVICE, True

    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(model_module, "measure_device", stand_in)
    return measured


def test_measuring_happens_once(database: Database, quick_device: list[str]) -> None:
    first, second = KnownBackend(), KnownBackend()
    one = cost_model([first], "cpu", database)
    two = cost_model([second], "cpu", Database(database._file._path))
    assert first.compiled
    assert not second.compiled
    assert quick_device == ["cpu"]
    assert one.rates == two.rates  # type: ignore[attr-defined]
    assert one.rates["known"].provenance == "probed"  # type: ignore[attr-defined]


def test_a_new_fingerprint_is_probed_again(database: Database) -> None:
    cost_model([KnownBackend(version="1")], "cpu", database)
    changed = KnownBackend(version="2")
    cost_model([changed], "cpu", database)
    assert changed.compiled


def test_another_thread_count_is_probed_again(database: Database) -> None:
    cost_model([KnownBackend()], "cpu", database)
    threads, changed = torch.get_num_threads(), KnownBackend()
    torch.set_num_threads(threads + 1)
    try:
        cost_model([changed], "cpu", database)
    finally:
        torch.set_num_threads(threads)
    assert changed.compiled


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_without_measuring_there_are_priors(
    how: str, database: Database, monkeypatch: pytest.MonkeyPatch, quick_device: list[str]
) -> None:
    if how == "environment":
        monkeypatch.setenv(SWITCH, "0")
    backend = KnownBackend()
    model: Any = cost_model([backend], "cpu", database, measure=how != "argument")
    assert not backend.compiled
    assert not quick_device
    assert model.rates["known"].provenance == "prior"
    assert model.device == prior_device("cpu")
    assert database.rates("device", "anything") is None


def test_what_was_measured_before_is_used_without_measuring(database: Database) -> None:
    cost_model([KnownBackend()], "cpu", database)
    later: Any = cost_model([KnownBackend()], "cpu", database, measure=False)
    assert later.rates["known"].provenance == "probed"


def test_a_busy_machine_is_measured_again_later(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(model_module.time, "time", lambda: now[0])
    measured: list[bool] = []

    def stand_in(device_type: str) -> tuple[DeviceModel, bool]:
        measured.append(True)
        return DEVICE, False

    monkeypatch.setattr(model_module, "measure_device", stand_in)
    for later, count in ((0.0, 1), (60.0, 1), (3600.0, 2)):
        now[0] += later
        device_model("cpu", database)
        assert len(measured) == count


def test_measured_regions_answer(database: Database) -> None:
    backend = KnownBackend()
    model = cost_model([backend], "cpu", database, measure=False)
    assert model.region("known", "key") is None
    device = prior_device("cpu")
    database.add_measurement("key", "known", "1", device.device, device.threads, Measurement(0.25, 0.0, 5))
    assert model.region("known", "key") == Estimate(0.25, "measured")


def test_notes_are_reported_and_kept(database: Database) -> None:
    told: list[tuple[str, str]] = []
    backend = KnownBackend(refused=frozenset({"aten._softmax.default"}))
    cost_model([backend], "cpu", database, report=lambda *note: told.append(note))
    assert any(name == "known" and "softmax" in note for name, note in told)
    assert any("s of compiling" in note for _, note in told)


def test_backends_of_other_devices_are_not_probed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = KnownBackend()
    monkeypatch.setattr(
        model_module, "measure_device", lambda _: (DeviceModel("cuda:0 big", (("float32", 1e13),), 1, 1, 1, 1, 1), True)
    )
    monkeypatch.setattr(model_module, "device_name", lambda _: "cuda:0 big")
    cost_model([backend], "cuda", database)
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
    from mixbackend.calibrate.device import _at_least

    prior = prior_device("cpu")
    stalled = DeviceModel(prior.device, (("float32", 1e6), ("bfloat16", 1e15)), 1.0, 1e12, 1.0, 1.0, 2, "probed")
    repaired = _at_least(stalled, prior)
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


def test_a_backend_that_fails_in_its_own_process_keeps_its_prior_and_is_not_probed_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def crash(name: str, device_type: str, path: object) -> str:
        asked.append(name)
        return "crash: signal SIGSEGV"

    monkeypatch.setattr(model_module, "probe_apart", crash)
    told: list[tuple[str, str]] = []
    backend = KnownBackend()
    for _ in range(2):
        model: Any = cost_model(
            [backend], "cpu", database, apart=("known",), report=lambda name, note: told.append((name, note))
        )
        assert model.rates["known"].provenance == "prior"
    assert asked == ["known"] and not backend.compiled
    assert told == [("known", "not probed, its process did not end well: crash: signal SIGSEGV")]


def test_a_process_that_probes_says_what_went_wrong(tmp_path: Any) -> None:
    problem = probe_apart("no such backend", "cpu", tmp_path / "rates.sqlite")
    assert problem.startswith("failed: UnknownBackendError")
