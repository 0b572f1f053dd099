"""The table of the TensorRT benchmark, and its rows."""

from __future__ import annotations

import threading

import pytest

from mixbackend.benchmarks.gpu_models import ROWS
from mixbackend.benchmarks.gpu_timing import alone, beside_others
from mixbackend.benchmarks.tensorrt_models import MODELS, main, table


def _record(row: str, ours: float | None, **others: float) -> dict[str, object]:
    times = {**others, **({} if ours is None else {"ours": ours})}
    return {"row": row, "ways": {way: {"ms": ms} for way, ms in times.items()}}


def test_rows_are_those_of_the_gpu_benchmark() -> None:
    assert set(MODELS) <= set(ROWS)


def test_the_mixture_is_held_against_the_better_of_both() -> None:
    rows = [
        _record("one", 1.0, eager=4.0, inductor=2.0, tensorrt=1.0),
        _record("two", 1.0, eager=4.0, inductor=0.25, tensorrt=1.0),
    ]
    lines = table(rows).splitlines()
    assert lines[2] == "| one | 4.000 | 2.000 | 1.000 | 1.000 | 1.000 |  |"
    assert "| 4.000 |" in lines[3][20:]
    assert lines[-1] == "geometric mean over the better: 2.000"


def test_what_failed_is_told_and_does_not_count() -> None:
    text = table([_record("one", None, inductor=2.0), {"row": "two", "failed": "the time was up"}])
    assert text.count("failed") == 9 and "geometric" not in text


def test_a_file_is_printed_without_running_anything(tmp_path, capsys) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"row": "one", "ways": {"ours": {"ms": 1.0}, "inductor": {"ms": 2.0}}}\n')
    assert main(["--table", "--output", str(path)]) == 0
    assert "0.500" in capsys.readouterr().out


def test_nothing_is_begun_without_time(tmp_path) -> None:
    assert main(["--minutes", "0.1", "--output", str(tmp_path / "none.jsonl"), "--rows", "resnet50"]) == 0
    assert not (tmp_path / "none.jsonl").exists()


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
