"""Generated Triton text under Triton's interpreter: every pattern of the table computes what eager does."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pytest
import torch
from triton_answers import answers_of
from triton_cases import CASES

pytest.importorskip("triton", reason="Triton is not installed")

KEYS = [(name, dtype) for name, case in CASES.items() for dtype in case.dtypes]
WALKED = (
    "layer_norm",
    "softmax",
    "softmax_of_columns",
    "cross_entropy",
    "group_norm",
    "row_sum",
    "column_sum",
    "variance",
    "column_variance",
)
WALKED_TOO = ("extremes", "positions", "integer_sums", "cumulative_sum", "cumulative_sum_of_columns", "log_softmax")


@lru_cache(maxsize=2)
def results(*options: str) -> Mapping[tuple[str, str], dict[str, Any]]:
    """Answers of the program, by case and type. It is one of its own: the interpreter is chosen before the import."""
    lines = answers_of("run_triton_cases.py", "interpreter", *options)
    return {(line["case"], line["dtype"]): line for line in lines}


def expect_eager(answer: Mapping[str, Any]) -> None:
    """The answer of a case that computed what eager does, in eager's layout."""
    assert "error" not in answer, answer["error"]
    assert "refused" not in answer, answer["refused"]
    assert answer["deviations"] == [] and answer["strides"] == []


@pytest.mark.sampled(60)
@pytest.mark.parametrize(("name", "dtype"), KEYS, ids=lambda value: str(value).removeprefix("torch."))
def test_pattern_is_what_eager_computes(name: str, dtype: torch.dtype) -> None:
    answer = results()[name, str(dtype)]
    expect_eager(answer)
    assert answer["kernels"] == (CASES[name].kernels or answer["kernels"])


@pytest.mark.parametrize("name", [*WALKED, *WALKED_TOO])
def test_rows_that_are_too_long_for_registers(name: str) -> None:
    answer = results("tight", *WALKED, *WALKED_TOO)[name, str(CASES[name].dtypes[0])]
    expect_eager(answer)
