"""The certificate as data, as a page and as a badge; what is expected to fail, and what has become worse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from few_samples import SAMPLES
from wrong_backends import CannotCompile, NarrowNumbers, Right

import mixbackend
from mixbackend.certify import pages
from mixbackend.certify.cases import Claim
from mixbackend.certify.certificate import SCHEMA, Certificate, read_rows
from mixbackend.certify.comparison import read_expected, regressions, with_expected
from mixbackend.certify.rows import Row, row_data, row_from
from mixbackend.contracts import Backend, MixbackendError

KEYS = {
    *("schema", "backend", "version", "fingerprint", "contract", "versions", "machine", "rule", "seed", "quick", "ops"),
    *("sources", "without"),
    *("isolated", "date", "seconds", "passed", "counts", "rows", "refused", "skipped", "alarms", "regressions"),
}
ROW_KEYS = {
    *("op", "dtypes", "sizes", "phase", "verdict", "problems", "held", "not_asked", "cases", "error", "saved_s"),
    *("detail", "expected"),
}
"""Of schema 1. Keys are only ever added; whoever adds one adds it here, and whoever takes one away breaks readers."""


def certified(backend: Backend, **options: object) -> Certificate:
    given = {"samples": SAMPLES, "sources": ("given",), "jobs": 0, "ops": ("exp", "relu"), **options}
    return mixbackend.certify(backend, **given)


@pytest.fixture(scope="module")
def right() -> Certificate:
    return certified(Right())


@pytest.fixture(scope="module")
def wrong() -> Certificate:
    return certified(NarrowNumbers())


def test_the_data_has_its_keys(right: Certificate) -> None:
    data = json.loads(json.dumps(right.to_dict(), allow_nan=False))
    assert data["schema"] == SCHEMA == 1
    assert set(data) == KEYS and all(set(row) == ROW_KEYS for row in data["rows"])
    assert tuple(map(row_from, data["rows"])) == right.rows


def test_two_runs_say_the_same(right: Certificate) -> None:
    again = certified(Right())
    assert [row_data(row) for row in again.rows] == [row_data(row) for row in right.rows]


def test_pages_and_badges_tell_what_is_wrong(right: Certificate, wrong: Certificate) -> None:
    assert right.to_markdown().startswith("# right passes certification\n")
    assert right.to_badge() == {
        "schemaVersion": 1,
        "label": "mixbackend certify right",
        "message": f"{right.counts['proved']} claims proved",
        "color": "brightgreen",
    }
    page, failing = wrong.to_markdown(), [row for row in wrong.rows if row.fails]
    assert "narrow_numbers fails certification" in page and all(str(row.claim) in page for row in failing)
    badge = wrong.to_badge()
    assert badge["color"] == "red" and badge["message"].startswith(f"{len(failing)} of ")


def test_pages_and_badges_tell_that_torchs_samples_were_not_there(right: Certificate) -> None:
    assert right.facts["sources"] == ["given"] and right.facts["without"] == ""
    less = replace(right, facts={**right.facts, "without": "torch's operator samples need this: pip install this"})
    assert "torch's operator samples need this: pip install this" in less.to_markdown()
    assert less.to_badge()["message"].endswith("claims proved, without torch's samples") and less.passed


def test_text_of_backends_breaks_no_table() -> None:
    assert pages.markdown({**certified(CannotCompile()).to_dict(), "alarms": ["a|b\nc"]}).count("\n- a\\|b c\n") == 1


def test_expected_failures_pass_and_alarm_when_they_hold(wrong: Certificate, tmp_path: Path) -> None:
    file = tmp_path / "expected"
    file.write_text("# what is known\naten.exp.default float64 * : values  # repaired in release 3\n")
    expected = certified(NarrowNumbers(), expected=file)
    assert expected.passed and expected.counts["expected"] == len(wrong.failures)
    assert {row.expected for row in expected.rows if row.fails} == {"repaired in release 3"}
    alarmed = certified(Right(), expected=file)
    assert not alarmed.passed and not alarmed.failures
    assert alarmed.alarms == ("expected to fail, but it holds: aten.exp.default float64 * : values",)


def test_another_problem_than_the_expected_one_fails(wrong: Certificate, tmp_path: Path) -> None:
    file = tmp_path / "expected"
    file.write_text("aten.exp.default float64 * : threads  # they race\n")
    assert not certified(NarrowNumbers(), expected=file).passed


def test_lines_that_fit_no_claim_alarm_in_whole_runs_alone(wrong: Certificate, tmp_path: Path) -> None:
    file = tmp_path / "expected"
    file.write_text("aten.gone.default * : *  # long ago\n")
    lines = read_expected(file)
    assert with_expected(wrong.rows, lines, whole=False)[1] == ()
    assert "nothing of this name is claimed" in with_expected(wrong.rows, lines, whole=True)[1][0]


def test_all_wrong_lines_are_named(tmp_path: Path) -> None:
    file = tmp_path / "expected"
    file.write_text("aten.exp.default\naten.relu.default : values\n")
    with pytest.raises(MixbackendError, match=r"line 1: .*line 2: "):
        read_expected(file)


def test_errors_that_grow_and_claims_that_break_are_regressions(right: Certificate, wrong: Certificate) -> None:
    assert regressions(right.rows, right.rows) == ()
    (broken, *_) = regressions(wrong.rows, right.rows)
    assert "was proved, now over-claim (values)" in broken
    row = Row(Claim("aten.exp.default", "float32", "static", "inference"), "proved", held=("values",), error=0.5)
    assert regressions([replace(row, error=1.4)], [row]) == ()
    assert regressions([replace(row, error=1.6)], [row]) == (f"{row.claim}: its error was 0.5 units, now 1.6",)


def test_an_earlier_run_is_read_from_its_file(right: Certificate, tmp_path: Path) -> None:
    file = tmp_path / "last.json"
    file.write_text(json.dumps(right.to_dict()))
    assert certified(NarrowNumbers(), against=file).regressions
    file.write_text(json.dumps({**right.to_dict(), "schema": SCHEMA + 1}))
    with pytest.raises(MixbackendError, match="schema"):
        read_rows(file)
    file.write_text("{}")
    with pytest.raises(MixbackendError, match="no certificate"):
        read_rows(file)


def test_errors_are_measured() -> None:
    errors = [row.error for row in certified(Right(), ops=("add",)).rows]
    assert errors and all(error is not None and 0 < error < 1 for error in errors)
