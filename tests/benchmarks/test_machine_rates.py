"""Databases that are begun anew: rates are carried over, everything else is gone, artifacts stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mixbackend.benchmarks import machine_rates
from mixbackend.benchmarks.machine_rates import begin_anew
from mixbackend.storage import Database


@pytest.fixture
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """The user's own database, with one rate and one decision."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    database = Database.open()
    database.set_rates("backend", "codegen here", {"entry_s": 1e-6})
    database.set_decision("user's graph", {"choice": 1})
    return database


def test_only_the_users_rates_are_in_it(user_cache: Database, tmp_path: Path) -> None:
    folder = tmp_path / "bench"
    before = Database.open(folder)
    before.set_decision("graph", {"choice": 2})
    before.quarantine("region", "codegen", "1", "crashed")
    before.set_rates("backend", "of an older version", {"entry_s": 5})
    before.close()
    (folder / "artifacts").mkdir()
    begin_anew(folder)
    after = Database.open(folder)
    assert after.all_rates() == (("backend", "codegen here", {"entry_s": 1e-6}),)
    assert not after.has_decisions() and after.rows("quarantine") == []
    assert (folder / "artifacts").is_dir()
    assert user_cache.has_decisions(), "the user's own stays as it is"


def test_without_rates_it_is_empty(user_cache: Database, tmp_path: Path) -> None:
    begin_anew(tmp_path / "bench", with_rates=False)
    assert Database.open(tmp_path / "bench").all_rates() == ()


def test_probing_fills_the_users_database(user_cache: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Database]] = []

    def probe(backends: Any, device: str, database: Database, budget_s: float) -> None:
        assert budget_s > 0
        asked.append((device, database))
        marks = {backend.name: backend.fingerprint() for backend in backends}
        database.set_rates("backend", f"eager | {marks['eager']} | cpu", {"settled": False})
        database.set_rates("backend", "eager | another version | cpu", {"settled": False})
        database.set_rates("device", "cpu x | torch", {"settled": True})

    monkeypatch.setattr(machine_rates, "calibrated_costs", probe)
    assert machine_rates.probe_machine() == ["backend eager"], "what was probed on a busy machine"
    ((device, database),) = asked
    assert device == "cpu" and database.all_rates() == user_cache.all_rates()
