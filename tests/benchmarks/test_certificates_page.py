"""The page of certificates: made of their data, with the facts that every page of results has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mixbackend.benchmarks import certificates
from mixbackend.certify.cases import Claim
from mixbackend.certify.certificate import Certificate
from mixbackend.certify.rows import Row

FACTS = {
    "backend": "mine",
    "version": "3",
    "versions": {"mixbackend": "0.1.0", "contract": "1.0", "torch": "2.13.0", "python": "3.11.7"},
    "machine": {"system": "Linux", "machine": "x86_64", "cores": 2},
    "quick": True,
    "date": "2026-11-27",
    "seconds": 61.4,
}
EXP = Claim("aten.exp.default", "float32", "static", "inference")
ROWS = (
    Row(EXP, "proved", held=("values",), cases=3, error=0.25),
    Row(Claim("aten.log.default", "float32", "static", "inference"), "over-claim", (("values", "a|b"),), cases=2),
    Row(Claim("aten.cos.default", "float64", "static", "inference"), "under-claim", saved_s=2e-6, detail="dtype"),
    Row(Claim("aten.sin.default", "float32", "static", "inference"), "not run", detail="the time of the run was over"),
)


def test_the_page_has_a_row_for_each_backend_and_what_is_wrong() -> None:
    data = Certificate(FACTS, ROWS, {"dtype": 7}).to_dict()
    page = certificates.page_of([data], {"other": "not installed"})
    assert "| mine | 3 | 1 | 1 | 0 | 0 | 1 | 1 | 5 | 7 | quick, ended early | 61 |" in page
    assert "| aten.log.default float32 static inference | values | a\\|b |" in page
    assert "| aten.cos.default float64 static inference | 2.0 us | dtype |" in page
    assert "| other | not installed |" in page
    for fact in (r"machine: \S", r"versions: \S", r"entered: 20\d\d-\d\d-\d\d"):
        assert re.search(rf"^- {fact}", page.split("\n|")[0], re.MULTILINE)


def test_whole_and_quick_certificates_have_a_command_each() -> None:
    whole = Certificate({**FACTS, "backend": "other", "quick": False}, ROWS).to_dict()
    page = certificates.page_of([Certificate(FACTS, ROWS).to_dict(), whole], {})
    assert "\n.ci/certify other\nCERTIFY_ARGS=--quick .ci/certify mine\n" in page


def test_a_folder_of_certificates_becomes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "page.md"
    monkeypatch.setattr("sys.argv", ["certificates", "page", "--folder", str(tmp_path), "--out", str(out)])
    assert certificates.main() == 1 and not out.exists()
    (tmp_path / "mine.json").write_text(json.dumps(Certificate(FACTS, ROWS).to_dict()))
    assert certificates.main() == 0 and out.read_text().startswith("# What certification says")
