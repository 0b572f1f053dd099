"""Tables of rates as files: round trip, what is refused, and that every shipped file can be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mixbackend.contracts import BackendRates, DeviceModel, OpRate, RateTableError
from mixbackend.contracts.build_seconds import BuildSeconds
from mixbackend.cost.families import FAMILIES, Family
from mixbackend.cost.look import Look
from mixbackend.cost.rate_tables import (
    TABLES,
    Entry,
    Machine,
    Told,
    major,
    read_table,
    table_text,
    tables_of,
    with_machine,
)

DEVICE = DeviceModel("cpu Test", (("float32", 2e11),), 2e10, 8e6, 6e10, 2e-6, 2)
LOOK = Look({"float32": 1e11}, 3e10, 1e-6, 1e-8, 2.0)
RATES = BackendRates(
    "library",
    1e-6,
    1e-7,
    1.2,
    (
        ("matmul/constant", "float32", OpRate(1e-6, 1.5e11, least_s=2e-6)),
        ("pointwise", "float32", OpRate(1e-7, 3e10)),
    ),
)
TOLD = (Told("here", "measured", 0.1), Told("here", "documented", 0.5))
ENTRY = Entry(RATES, "1.31.0", BuildSeconds(0.2, 0.01), 0.1, TOLD)
MACHINE = Machine("Maker", DEVICE, LOOK, "measured", 0.1, {"here": "a test"}, (ENTRY,))


def test_a_machine_is_what_it_was_after_writing_and_reading() -> None:
    text = table_text("avx512", [MACHINE])
    assert read_table(text, "test") == (MACHINE,)
    assert sum('"row"' in line for line in text.splitlines()) == 2, "a line for each row"


def test_writing_a_machine_again_replaces_it_and_keeps_the_others(tmp_path: Path) -> None:
    file = tmp_path / "avx512.json"
    other = replace(MACHINE, device=replace(DEVICE, threads=4))
    for machine in (MACHINE, other, replace(MACHINE, error=0.3)):
        file.write_text(with_machine(file, "avx512", machine))
    assert {(item.device.threads, item.error) for item in read_table(file.read_text(), "test")} == {(4, 0.1), (2, 0.3)}
    with pytest.raises(RateTableError, match="avx2"):
        with_machine(file, "avx2", MACHINE)


def _row(value: Any) -> Any:
    return value["machines"][0]["backends"][0]["rows"][0]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda value: value.update(format=0),
        lambda value: value.update(family="8086"),
        lambda value: value["machines"][0]["device"].update(bytes_per_s=-1.0),
        lambda value: value["machines"][0]["look"]["products"].clear(),
        lambda value: value["machines"][0].update(mark="guessed"),
        lambda value: _row(value).update(row="no/such/row"),
        lambda value: _row(value).update(flops_per_s="fast"),
        lambda value: _row(value).update(source="hearsay"),
        lambda value: _row(value).update(error=0.0),
        lambda value: _row(value).pop("mark"),
        lambda value: value["machines"][0]["backends"].append(value["machines"][0]["backends"][0]),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_the_machine(spoil: Callable[[Any], object]) -> None:
    value = json.loads(table_text("avx512", [MACHINE]))
    spoil(value)
    with pytest.raises(RateTableError, match=r"no table of rates: (machine 0|the file)"):
        read_table(json.dumps(value), "test")


@pytest.mark.parametrize("family", FAMILIES)
def test_shipped_files_can_be_read(family: Family) -> None:
    for machine in tables_of(family):
        assert machine.sources or not machine.entries, machine.product


def test_calling_one_kernel_costs_two_backends_the_same() -> None:
    """Gradients of convolutions are eager's own kernels in oneDNN's regions."""
    (machine,) = (item for item in tables_of("avx512") if item.mark == "measured")
    entries = [machine.entry(name) for name in ("eager", "onednn")]
    for row in ("convolution/gradient", "convolution/channels_last/gradient"):
        first, second = (entry.rates.rate(row, "float32") for entry in entries if entry is not None)
        assert first is not None and second is not None
        assert first.overhead_s == pytest.approx(second.overhead_s, rel=0.2)


def test_a_fleets_own_table_takes_the_place_of_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "avx512.json").write_text(table_text("avx512", [MACHINE]))
    shipped = tables_of("h100")
    monkeypatch.setenv(TABLES, str(tmp_path))
    assert tables_of("avx512") == (MACHINE,) and tables_of("h100") == shipped


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.13.0+cpu", "2.13"), ("g++ (Debian 12.2.0-14) 12.2.0", "12.2"), ("1.31.2", "1.31"), ("", ""), ("9", "9")],
)
def test_the_major_version_is_the_first_two_numbers(version: str, expected: str) -> None:
    assert major(version) == expected
