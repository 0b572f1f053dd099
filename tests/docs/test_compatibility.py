"""The page of compatibility says the versions that the code has."""

from __future__ import annotations

import re
from pathlib import Path

from mixbackend.contracts import CONTRACT_VERSION, check_contract_version
from mixbackend.contracts.errors import ContractVersionError

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "compatibility.md").read_text(encoding="utf-8")


def accepted(version: str) -> bool:
    try:
        check_contract_version("plug-in", version)
    except ContractVersionError:
        return False
    return True


def test_the_contract_is_of_the_major_version_that_the_page_is_about() -> None:
    (major,) = re.findall(r"`CONTRACT_VERSION`, (\d+)\.x", TEXT)
    assert CONTRACT_VERSION.partition(".")[0] == major
    minor = int(CONTRACT_VERSION.partition(".")[2])
    assert accepted(f"{major}.0") and accepted(f"{major}.{minor}")
    assert not accepted(f"{major}.{minor + 1}") and not accepted(f"{int(major) + 1}.0")
