"""Models that generate: tokens are eager's, with as many graphs as torch makes; all of them are run by a command."""

from __future__ import annotations

import pytest

from mixbackend.benchmarks.generated import Row, problems_of, rows_of
from mixbackend.benchmarks.models.generators import GENERATORS, generator_named


def test_there_are_twenty_of_them_and_two_of_full_size() -> None:
    names = [item.name for item in GENERATORS]
    assert len(set(names)) == len(names)
    assert sum(not item.full_size for item in GENERATORS) >= 20
    assert [item.name for item in GENERATORS if item.full_size] == ["whisper-tiny", "t5-small"]


def test_an_unknown_name_is_an_error_that_lists_them() -> None:
    with pytest.raises(KeyError, match="there are llama, "):
        generator_named("lama")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "cache"), [("llama", "static"), ("gpt2", "dynamic"), ("whisper", "static")], ids=lambda value: value
)
def test_tokens_are_eagers(name: str, cache: str) -> None:
    pytest.importorskip("transformers", reason="generate() is that of transformers")
    (row,) = rows_of(generator_named(name), [cache], [(1, 7), (2, 19)], 4, "mixbackend")
    assert row["problems"] == []
    assert row["agreeing"] == row["tokens"] == [4, 4, 4]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"graphs": [2, 4, 6]}, "graphs"),
        ({"scores_off": 1e-3}, "scores are off by 1.0e-03"),
        ({"scores_off": float("nan")}, "scores are off by nan"),
        ({"events": ["quarantine inference-0 codegen: wrong"]}, "quarantine"),
    ],
)
def test_what_is_wrong_is_told(change: dict[str, object], said: str) -> None:
    right = Row(
        model="llama",
        cache="static",
        way="mixbackend",
        tokens=[4],
        agreeing=[4],
        scores_off=1e-6,
        graphs=[2, 4, 4],
        expected_graphs=[2, 4, 4],
        regions={},
        events=[],
        seconds=1.0,
        problems=[],
        inductor=[],
    )
    problems = problems_of({**right, **change})  # type: ignore[typeddict-item]
    assert bool(problems) is bool(said)
    assert all(said in problem for problem in problems)
