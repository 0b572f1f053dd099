"""``mixbackend certify``: files, exit status, processes, and what it says where there is nothing to certify."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from few_samples import SAMPLES
from wrong_backends import NarrowNumbers, Right

import mixbackend
from mixbackend.certify.samples import Sample, checked_samples, load_samples
from mixbackend.certify.source import source_of
from mixbackend.cli import main
from mixbackend.contracts import BackendUnavailableError, MixbackendError, UnknownBackendError

FEW = ("--samples", "few_samples:SAMPLES", "--source", "given", "--ops", "exp", "--jobs", "0")


def status(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["certify", *arguments])
    return int(left.value.code or 0)


def test_it_writes_what_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, badge = tmp_path / "page.md", tmp_path / "badge.json"
    page.write_text("# A step before\n")
    options = ("--markdown", str(page), "--badge", str(badge), "--json")
    assert status("wrong_backends:Right", *FEW, *options) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["passed"] and data["backend"] == "right" and not data["isolated"]
    assert page.read_text().startswith("# A step before\n# right passes certification")
    assert json.loads(badge.read_text())["message"] == f"{data['counts']['proved']} claims proved"


def test_what_is_wrong_is_its_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("wrong_backends:NarrowNumbers", *FEW) == 1
    assert "narrow_numbers fails certification" in capsys.readouterr().out


HERE = """\
from few_samples import SAMPLES
from wrong_backends import Right

class Here(Right):
    name = "here"
"""


@pytest.mark.parametrize("jobs", ["0", pytest.param("1", marks=pytest.mark.nightly)])
def test_modules_of_the_current_folder_are_found(
    jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = f"of_this_folder_{jobs}"
    (tmp_path / f"{module}.py").write_text(HERE)
    monkeypatch.chdir(tmp_path)
    assert status(f"{module}:Here", "--samples", f"{module}:SAMPLES", "--source", "given", "--jobs", jobs) == 0
    assert "here passes certification" in capsys.readouterr().out
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize("name", ["nowhere", "wrong_backends:Nobody", "no_module_of_this_name:Right"])
def test_backends_that_are_not_there(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(name, *FEW) == 1
    assert "what to do:" in capsys.readouterr().err


def test_names_of_backends_that_cannot_be_used_say_why() -> None:
    with pytest.raises(UnknownBackendError):
        mixbackend.certify("nowhere")
    unusable = [info.name for info in mixbackend.backends() if not info.available]
    if unusable:
        with pytest.raises(BackendUnavailableError):
            mixbackend.certify(unusable[0])


def test_objects_that_cannot_be_carried_are_examined_here() -> None:
    class Local(Right):
        name = "local"

    assert source_of(Right()) is not None and source_of(Local()) is None
    certificate = mixbackend.certify(Local(), samples=SAMPLES, sources=("given",), ops=("exp",))
    assert certificate.passed and not certificate.facts["isolated"]
    assert "nothing guarded against crashes" in certificate.to_markdown()


def test_a_run_without_time_says_so() -> None:
    certificate = mixbackend.certify(NarrowNumbers(), samples=SAMPLES, sources=("given",), jobs=0, limit_s=0.0)
    assert not certificate.passed and not certificate.rows


def test_samples_are_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_samples("few_samples:SAMPLES") == SAMPLES
    with pytest.raises(MixbackendError, match="cannot be taken"):
        load_samples("few_samples:NONE")
    with pytest.raises(MixbackendError, match="no Sample"):
        checked_samples([1])
    with pytest.raises(MixbackendError, match="several samples are called relu"):
        checked_samples([SAMPLES[0], Sample("relu", abs, ())])


def test_sources_that_there_are_not_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("wrong_backends:Right", "--source", "nobodys", "--jobs", "0") == 1
    assert "no samples are called nobodys" in capsys.readouterr().err
