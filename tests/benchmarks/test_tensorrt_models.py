"""The table of the TensorRT benchmark, and its rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mixbackend.benchmarks.gpu_models import ROWS
from mixbackend.benchmarks.gpu_timing import alone, beside_others
from mixbackend.benchmarks.row_records import merged, read
from mixbackend.benchmarks.tensorrt_models import MODELS, RowSettings, main, missing, table


def _record(row: str, ours: float | None, **others: float) -> dict[str, object]:
    times = {**others, **({} if ours is None else {"ours": ours})}
    return {"row": row, "ways": {way: {"ms": ms} for way, ms in times.items()}}


def test_rows_are_those_of_the_gpu_benchmark() -> None:
    assert set(MODELS) <= set(ROWS)


def _table(*records: dict[str, object]) -> str:
    return table(merged(records))


def test_the_mixture_is_held_against_the_better_of_both() -> None:
    text = _table(
        _record("one", 1.0, eager=4.0, inductor=2.0, tensorrt=1.0),
        _record("two", 1.0, eager=4.0, inductor=0.25, tensorrt=1.0),
        {"row": "one", "again": {"ours": {"first_s": 3.5}}},
        {"row": "one", "update": {"ours": {"s": 0.5}}},
    )
    lines = text.splitlines()
    assert lines[2] == "| one | 4.000 | 2.000 | 1.000 | 1.000 | 1.000 | 0.500 |  | 3.5 | 0.5 |"
    assert lines[3] == "| two | 4.000 | 0.250 | 1.000 | 1.000 | 4.000 | 4.000 |  |  |  |"
    assert "geometric mean over the better: 2.000 (2 models)" in lines
    assert "geometric mean over tensorrt: 1.000 (2 models)" in lines


def test_what_is_missing_is_told_and_does_not_count() -> None:
    text = _table(_record("one", None, inductor=2.0), {"row": "two", "failed": "ended"})
    assert text.count("none") == 5 + 6 and "geometric" not in text


def test_parts_are_joined_and_a_way_that_begins_anew_forgets_its_time() -> None:
    parts = [
        {"row": "one", "ways": {"ours": {"built_s": 9.0}}},
        {"row": "one", "ways": {"ours": {"left_out": "not ready"}}},
        {"row": "one", "ways": {"ours": {"first_s": 2.0}}},
        {"row": "one", "ways": {"ours": {"ms": 1.5}, "eager": {"ms": 3.0}}},
    ]
    assert merged(parts)["one"]["ways"] == {"ours": {"built_s": 9.0, "first_s": 2.0, "ms": 1.5}, "eager": {"ms": 3.0}}
    assert missing(merged(parts), ["one"]) == ("one inductor", "one tensorrt")
    again = merged([*parts, {"row": "one", "ways": {"ours": {"failed": "memory"}}}])
    assert again["one"]["ways"]["ours"] == {"built_s": 9.0, "failed": "memory"}


def test_a_file_is_printed_without_running_anything(tmp_path, capsys) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"row": "one", "ways": {"ours": {"ms": 1.0}, "inductor": {"ms": 2.0}}}\n')
    assert main(["--table", "--output", str(path)]) == 0
    assert "0.500" in capsys.readouterr().out


def test_nothing_is_begun_without_time(tmp_path) -> None:
    assert main(["--minutes", "0.1", "--output", str(tmp_path / "none.jsonl"), "--rows", "resnet50"]) == 0
    assert not (tmp_path / "none.jsonl").exists()


@pytest.fixture
def odd_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Runs the benchmark with rows that take as long as is wished, in one folder; gives what was found so far."""
    settings = RowSettings("odd_row", least_s=0.1, preparing_s=4.0, timing_s=0.0, again_s=0.5)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))

    def run(wishes: str = "", seconds: float = 30.0, *more: str) -> dict[str, Any]:
        monkeypatch.setenv("ODD_ROW", wishes)
        output = tmp_path / "rows.jsonl"
        time_given = ["--minutes", str(seconds / 60.0), "--rows", "one,two", "--output", str(output)]
        code = main([*time_given, "--calibration", "0", "--keep", str(tmp_path / "kept"), *more], settings)
        records = merged(read(output))
        assert code == (1 if missing(records, ["one", "two"]) else 0)
        return records

    return run


def test_all_stages_of_all_rows_are_run(odd_rows) -> None:
    records = odd_rows()
    for name in ("one", "two"):
        assert [records[name]["ways"][way]["ms"] for way in ("eager", "inductor", "tensorrt", "ours")] == [6, 9, 9, 5]
        assert [records[name]["again"][way]["first_s"] for way in ("tensorrt", "ours")] == [2.5, 2.5]
        assert records[name]["update"]["ours"]["s"] == 0.25


def test_a_way_that_is_not_ready_is_left_out_and_the_next_run_goes_on_with_it(odd_rows) -> None:
    records = odd_rows("ours=60", 8.0)
    for name in ("one", "two"):
        ways = records[name]["ways"]
        assert ways["tensorrt"]["ms"] == 9 and "ms" not in ways["ours"] and "not ready" in ways["ours"]["left_out"]
        assert "ours" not in records[name]["again"]
    # What was ready is not built again.
    records = odd_rows("inductor=60,tensorrt=60", 20.0)
    for name in ("one", "two"):
        assert records[name]["ways"]["ours"]["ms"] == 5 and "left_out" not in records[name]["ways"]["ours"]
        assert records[name]["again"]["ours"]["first_s"] == 2.5


@pytest.mark.nightly
def test_what_a_row_told_before_it_ended_is_kept(odd_rows) -> None:
    records = odd_rows("update=60,again=dies", 10.0)
    assert records["one"]["ways"]["ours"]["ms"] == 5 and records["two"]["ways"]["ours"]["ms"] == 5
    assert "update" not in records["one"] and "again" not in records["one"]


def test_a_row_that_dies_costs_only_itself(odd_rows) -> None:
    records = odd_rows("ours=dies", 10.0)
    assert "ended with 3" in records["one"]["failed"] and records["one"]["ways"]["tensorrt"]["ms"] == 9


def test_building_alone_measures_nothing(odd_rows) -> None:
    records = odd_rows("", 10.0, "--only-build")
    assert records["one"]["ways"]["ours"] == {"built_s": 1.0}
    assert odd_rows("inductor=60", 20.0)["one"]["ways"]["ours"]["ms"] == 5


def test_strange_arguments_are_refused() -> None:
    with pytest.raises(SystemExit):
        main(["--nothing"])


def test_nobody_is_timed_while_others_compile(tmp_path) -> None:
    lock, steps = tmp_path / "lock", []

    def timed() -> None:
        with alone(lock):
            steps.append("timed")

    with beside_others(lock), beside_others(lock):
        waiting = threading.Thread(target=timed)
        waiting.start()
        waiting.join(timeout=0.2)
        steps.append("compiled")
    waiting.join(timeout=10)
    assert steps == ["compiled", "timed"]


def test_rows_are_shared_out_over_the_gpus(odd_rows, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    records = odd_rows("", 20.0)
    assert {name: records[name]["gpu"] for name in ("one", "two")} == {"one": ["3"], "two": ["5"]}
