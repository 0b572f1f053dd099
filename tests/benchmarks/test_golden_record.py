"""The golden record: what is masked, what is told as a difference, what it covers."""

from __future__ import annotations

from pathlib import Path

import pytest

from mixbackend.benchmarks.golden.__main__ import compare
from mixbackend.benchmarks.golden.graphs import GRAPHS
from mixbackend.benchmarks.golden.masks import MASK, masked, report_text


def test_places_and_addresses_are_masked_and_code_is_not() -> None:
    line = "# File: /home/me/model.py:12 in forward, code: y = x / 2 + 1.5"
    assert masked(line) == "# code: y = x / 2 + 1.5"
    assert masked("at 0x7f00aa00bb00, mb_" + "0a" * 20) == f"at 0x{MASK}, mb_{MASK}"
    assert masked("a / b / c; t0 = add(t1, 2.5)  ") == "a / b / c; t0 = add(t1, 2.5)"


def test_measured_seconds_are_masked_and_estimates_are_not() -> None:
    text = report_text({"measured_s": 0.1, "estimated_s": 0.2, "inner": [{"measured_s": None, "pid": 3}]})
    assert "0.1" not in text and "0.2" in text
    assert "null" in text, "that nothing was measured means something"
    assert "3" not in text


def test_differences_and_missing_files_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for folder, texts in ((before, {"a": "x\n", "b": "y\n", "c": "z\n"}), (after, {"a": "x\n", "b": "w\n"})):
        folder.mkdir()
        for name, text in texts.items():
            (folder / f"{name}.txt").write_text(text)
    assert compare(before, after, whole=True) == ["b.txt", "c.txt"]
    assert "-y\n+w" in capsys.readouterr().out
    assert compare(before, after, whole=False) == ["b.txt"]


def test_thirty_graphs() -> None:
    assert len(GRAPHS) == 30
    assert sum(graph.train for graph in GRAPHS.values()) >= 8
    assert sum(graph.dynamic is not False for graph in GRAPHS.values()) >= 5
