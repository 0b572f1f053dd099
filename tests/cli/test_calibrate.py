"""``mixbackend calibrate``: it measures on quiet machines alone, and writes this machine's rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mixbackend.calibrate import on_purpose
from mixbackend.calibrate.exporting import machine_as_measured
from mixbackend.calibrate.measured_rows import stamp
from mixbackend.cli import app
from mixbackend.contracts import Backend, MixbackendError
from mixbackend.cost.device_priors import prior_device
from mixbackend.cost.families import family_of
from mixbackend.cost.model import device_subject, rates_subject
from mixbackend.cost.priors import prior_rates
from mixbackend.cost.rate_tables import read_table
from mixbackend.cost.records import device_record, rates_record
from mixbackend.storage import Database


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Seconds that backends were measured for, by a stand-in that knows them at once."""
    calls: list[Any] = []

    def measure(backends: Sequence[Backend], device_type: str, database: Database, **given: Any) -> None:
        calls.append(given["budget_s"])
        given["begin"](backends[0].name, 0)
        keep_rates(backends[:1], database)

    monkeypatch.setattr(on_purpose, "calibrated_costs", measure)
    monkeypatch.setattr(on_purpose, "why_busy", lambda: "")
    tmp_path.chmod(0o700)
    (tmp_path / "config.yaml").write_text(f"version: 1\ncache: {{dir: {tmp_path}}}\nbackends: [onednn, eager]\n")
    return calls


def keep_rates(backends: Sequence[Backend], database: Database) -> None:
    """As if these backends had been probed; one row of each."""
    device = prior_device("cpu")
    database.set_rates("device", device_subject(device.device), {**device_record(device), "provenance": "probed"})
    for backend in backends:
        record = rates_record(prior_rates(backend, device))
        record["rates"][0][4] = "probed"
        row = {**record, **stamp(True), "error": 0.12, "build_s": 0.7}
        database.set_rates("backend", rates_subject(backend, device), row)


def _run(tmp_path: Path, *options: str) -> Any:
    return CliRunner().invoke(app, ["calibrate", "--config", str(tmp_path / "config.yaml"), *options])


def test_this_machine_is_written_to_its_familys_table(measured: list[Any], tmp_path: Path) -> None:
    target = tmp_path / "table.json"
    answer = _run(tmp_path, "--budget-s", "7", "--export", str(target), "--json")
    assert answer.exit_code == 0, answer.output
    assert measured == [7.0] and json.loads(answer.stdout)["exported"] == str(target)
    (machine,) = read_table(target.read_text(), "test", family_of("cpu"))
    (entry,) = machine.entries
    assert entry.rates.backend == "onednn" and entry.error == 0.12 and entry.build.region_s == 0.7
    errors = {told.source: told.error for told in entry.told}
    assert errors["measured"] == 0.12 < errors["fitted"] < errors["documented"], "what no probe told is less certain"


def test_on_a_busy_machine_nothing_is_measured_unless_forced(
    measured: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_purpose, "why_busy", lambda: "somebody computes")
    answer = _run(tmp_path)
    assert answer.exit_code == 1 and isinstance(answer.exception, MixbackendError)
    assert "somebody computes" in str(answer.exception) and measured == []
    answer = _run(tmp_path, "--force")
    assert answer.exit_code == 0 and measured == [None]
    assert "warning: the machine is not quiet: somebody computes" in answer.output


def test_a_machine_that_was_not_measured_has_no_table(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(MixbackendError, match="was not measured"):
        machine_as_measured([], "cpu", Database.open(tmp_path))


def test_rates_of_priors_alone_are_no_entry(tmp_path: Path) -> None:
    from mixbackend.backends.onednn.backend import OneDnnBackend

    tmp_path.chmod(0o700)
    database, backend = Database.open(tmp_path), OneDnnBackend()
    keep_rates([backend], database)
    subject = rates_subject(backend, prior_device("cpu"))
    row: Any = database.rates("backend", subject)
    for rate in row["rates"]:
        rate[4] = "prior"
    del row["error"]
    database.set_rates("backend", subject, row)
    assert machine_as_measured([backend], "cpu", database).entries == ()
