"""What going to another pool of threads costs: measured once per backend, charged once per region."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mixbackend.calibration import SWITCH, cost_model
from mixbackend.calibration import model as model_module
from mixbackend.calibration.switching import (
    PRIOR_SWITCH_S,
    measure_switch,
    needs_switch,
    read_switch,
    switch_record,
)
from mixbackend.contracts import Backend, Traits, Unsupported
from mixbackend.storage import Database

from .conftest import DEVICE, KnownBackend


class Foreign(KnownBackend):
    """A backend that says that it has threads of its own."""

    def traits(self) -> Traits:
        return replace(super().traits(), thread_pool="foreign")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stands in for measuring; keeps the names of who was measured."""
    names: list[str] = []

    def stand_in(backend: Backend, budget_s: float, report: object) -> tuple[float, bool]:
        names.append(backend.name)
        return 3e-6, True

    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(model_module, "measure_switch", stand_in)
    monkeypatch.setattr(model_module, "measure_device", lambda device_type: (DEVICE, True))
    monkeypatch.setattr(
        model_module, "_rates", lambda backend, device, *others: model_module.prior_rates(backend, device)
    )
    return names


def test_a_region_of_a_foreign_pool_costs_the_switch_once(tmp_path: Path, measured: list[str]) -> None:
    database = Database(tmp_path / "costs.sqlite")
    at_home = cost_model([KnownBackend()], "cpu", database).entry("known")
    assert measured == []
    abroad = cost_model([Foreign()], "cpu", database).entry("known")
    again = cost_model([Foreign()], "cpu", database).entry("known")
    assert abroad == again == pytest.approx(at_home + 3e-6)
    assert measured == ["known"]


def test_without_measuring_the_prior_stands_in(tmp_path: Path, measured: list[str]) -> None:
    database = Database(tmp_path / "costs.sqlite")
    at_home = cost_model([KnownBackend()], "cpu", database, measure=False).entry("known")
    abroad = cost_model([Foreign()], "cpu", database, measure=False).entry("known")
    assert abroad == pytest.approx(at_home + PRIOR_SWITCH_S)
    assert measured == []


def test_only_foreign_pools_of_the_cpu_need_a_switch() -> None:
    class OnGpu(Foreign):
        def traits(self) -> Traits:
            return replace(super().traits(), device_types=frozenset({"cuda"}))

    assert (needs_switch(Foreign()), needs_switch(KnownBackend()), needs_switch(OnGpu())) == (True, False, False)


def test_a_backend_without_products_keeps_the_prior() -> None:
    class Refusing(Foreign):
        def judge(self, view: object) -> Unsupported:
            return Unsupported("argument", "nothing runs here")

    told: list[str] = []
    assert measure_switch(Refusing(), 5.0, lambda name, note: told.append(note)) == (PRIOR_SWITCH_S, True)
    assert "nothing runs here" in told[0]


def test_a_real_backend_is_measured_and_threads_are_left_as_they_were() -> None:
    from mixbackend.backends.onnxruntime.backend import OnnxRuntimeBackend

    before = torch.get_num_threads()
    seconds, _ = measure_switch(OnnxRuntimeBackend(), 30.0, lambda name, note: pytest.fail(note))
    assert 0.0 <= seconds < 2.1e-3
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("wrong", [None, {}, {"switch_s": -1.0}, {"switch_s": float("nan")}, {"switch_s": "soon"}])
def test_a_record_that_does_not_fit_counts_as_missing(wrong: dict[str, object] | None) -> None:
    assert read_switch(wrong) is None
    assert read_switch(switch_record(4e-6, True)) == 4e-6
