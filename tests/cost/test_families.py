"""Which shipped table a processor gets, by what the system says of it."""

from __future__ import annotations

import platform

import pytest

from mixbackend.cost.families import family_of
from mixbackend.cost.look import Look
from mixbackend.cost.model import table_here
from mixbackend.cost.rate_tables import tables_of
from mixbackend.host.devices import device_name, product_of

LOOK = Look({"float32": 1.04e11, "bfloat16": 3.2e11}, 24e9, 1.2e-6, 1.2e-8, 1.0)
GRAVITON3 = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm sve asimdfhm svebf16 i8mm
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
""".splitlines()


@pytest.mark.parametrize("machine", ["aarch64", "arm64"])
def test_a_processor_of_aarch64_gets_the_table_of_its_kind(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert family_of(device_name("cpu")) == "aarch64"
    (shipped,) = tables_of("aarch64")
    found = table_here("cpu", LOOK)
    assert found is not None and found.device.device == device_name("cpu") and found.device.provenance == "prior"
    products = shipped.look.products["float32"]
    assert found.device.peak("float32") == pytest.approx(shipped.device.peak("float32") * 1.04e11 / products, rel=0.5)


def test_processors_of_aarch64_are_told_apart_by_maker_and_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert product_of(GRAVITON3) == "aarch64 0x41 0xd40"
    other = [line.replace("0xd40", "0xd4f") for line in GRAVITON3]
    assert product_of(other) == "aarch64 0x41 0xd4f"
    assert product_of([*GRAVITON3, "", *other]) == "aarch64 0x41 0xd40", "the first processor names the machine"


def test_a_name_is_the_product_and_no_name_is_none() -> None:
    assert product_of(["model name\t: AMD EPYC 9B14", "CPU part\t: 1"]) == "AMD EPYC 9B14"
    assert product_of(["processor\t: 0"]) == ""
