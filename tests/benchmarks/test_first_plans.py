"""First plans by a table against those by own rates: what is withheld, what is own, what is told."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mixbackend import registry
from mixbackend.benchmarks import machine_rates, withheld
from mixbackend.benchmarks.commands.first_plans import value
from mixbackend.benchmarks.first_plans import SAME, FirstPlans, Wanted, default_cases, measure
from mixbackend.benchmarks.models.registry import find
from mixbackend.benchmarks.one_model.timing import Timing
from mixbackend.contracts import MixbackendError
from mixbackend.cost.model import is_measured, rates_row, usable_rates
from mixbackend.cost.rate_tables import TABLES, Machine, table_text, tables_of
from mixbackend.host.devices import device_name
from mixbackend.storage import Database


@pytest.fixture
def here() -> Machine:
    """The measured processor, as if it were this one."""
    (machine,) = (item for item in tables_of("avx512") if item.mark == "measured")
    return replace(machine, device=replace(machine.device, device=device_name("cpu"), threads=torch.get_num_threads()))


def test_without_its_product_a_family_is_filled_from_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(withheld, "device_name", lambda kind: "cuda:0 NVIDIA H100 80GB HBM3")
    assert [item.product for item in withheld.other_machines("cuda")] == ["NVIDIA H200"]
    kept = withheld.other_machines("cuda", keep_own=True)
    assert "NVIDIA H100 80GB HBM3" in [item.product for item in kept]


def test_plans_read_the_other_table_inside_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TABLES, raising=False)
    family = withheld.family_of(device_name("cpu"))
    with withheld.other_table(tmp_path / "tables", "cpu"):
        assert os.environ[TABLES] == str(tmp_path / "tables")
        assert all(item.product != device_name("cpu").partition(" ")[2] for item in tables_of(family))
    assert TABLES not in os.environ


def test_exported_rates_are_measured_ones_again(tmp_path: Path, here: Machine) -> None:
    file = tmp_path / "exported.json"
    file.write_text(table_text("avx512", [here]))
    machine = machine_rates.exported_here(file, "cpu")
    machine_rates.keep_exported(tmp_path / "cache", machine)
    database, backends = Database.open(tmp_path / "cache"), registry.resolve(["eager", "codegen"])
    assert is_measured(backends, "cpu", database)
    for backend in backends:
        rates, entry = usable_rates(rates_row(backend, here.device, database), here.device), here.entry(backend.name)
        assert rates is not None and entry is not None
        for (row, dtype, rate), told in zip(rates.rates, entry.told, strict=True):
            known = entry.rates.rate(row, dtype)
            assert known is not None and (rate.overhead_s, rate.flops_per_s) == (known.overhead_s, known.flops_per_s)
            assert (rate.provenance == "probed") == (told.mark == "measured" and told.source != "fitted")


def test_rates_of_another_machine_are_refused(tmp_path: Path, here: Machine) -> None:
    file = tmp_path / "exported.json"
    file.write_text(table_text("avx512", [replace(here, device=replace(here.device, device="cpu another"))]))
    with pytest.raises(MixbackendError, match="has no rates of"):
        machine_rates.exported_here(file, "cpu")


def test_nothing_own_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    with pytest.raises(MixbackendError, match="no rates of its own"):
        machine_rates.check_rates("cpu", None)


def test_backends_that_an_export_lacks_are_named(here: Machine) -> None:
    lacking = replace(here, entries=tuple(item for item in here.entries if item.rates.backend != "codegen"))
    assert "codegen" in machine_rates.check_rates("cpu", lacking)


def test_the_usual_cases_are_24_graphs_and_six_training_steps() -> None:
    cases = default_cases()
    assert [phase for _, phase in cases].count("inference") == 24
    assert [phase for _, phase in cases].count("training") == 6 and len(set(cases)) == 30
    assert all(find(name).train for name, phase in cases if phase == "training")


def test_a_model_runs_by_both_plans_or_they_are_the_same(here: Machine) -> None:
    (row,) = measure([("lennard_jones", "inference")], Wanted(own=here, rounds=2), lambda row: None)
    assert row.ratio is not None and row.table is not None and row.own is not None
    assert (row.status == SAME) == (not row.own.rounds_s)
    assert sum(row.table.placement.values()) == sum(row.own.placement.values()) > 0


def test_what_fails_and_what_is_not_reached_are_rows(here: Machine) -> None:
    told: list[FirstPlans] = []
    (failed,) = measure([("no such model", "inference")], Wanted(own=here), told.append)
    (late,) = measure([("resnet18", "training")], Wanted(own=here, budget_s=-1.0), told.append)
    assert failed.status.startswith("KeyError") and late.status == "not reached"
    assert told == [failed, late] and failed.ratio is None
    found = value(told)
    assert found["not_reached"] == ["resnet18 training"] and found["measured"] == 0


def test_equal_plans_count_as_one_and_others_by_their_medians() -> None:
    slow, fast = (Timing("", "pass", rounds_s=(seconds,) * 3) for seconds in (2e-3, 1e-3))
    rows = [FirstPlans(("a", "inference"), SAME), FirstPlans(("b", "training"), "pass", slow, fast)]
    found = value(rows)
    assert found["largest"] == pytest.approx(2.0) and found["geometric_mean"] == pytest.approx(2.0**0.5)
