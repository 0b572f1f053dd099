"""Generated Triton text under Triton's interpreter: every pattern of the table computes what eager does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from triton_answers import Answers
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
INTEGERS = ("positions_beyond_32_bits", "running_extremes")
"""Values beyond 32 bits, and types of eight: wrong once."""


def expect_eager(answer: Mapping[str, Any]) -> None:
    """The answer of a case that computed what eager does, in eager's layout."""
    assert "refused" not in answer, answer["refused"]
    assert answer["deviations"] == [] and answer["strides"] == []


@pytest.mark.sampled(30)
@pytest.mark.parametrize(("name", "dtype"), KEYS, ids=lambda value: str(value).removeprefix("torch."))
def test_pattern_is_what_eager_computes(answer: Answers, name: str, dtype: torch.dtype) -> None:
    found = answer("run_triton_cases", name, str(dtype))
    expect_eager(found)
    assert found["kernels"] == (CASES[name].kernels or found["kernels"])


@pytest.mark.parametrize("name", [*WALKED, *WALKED_TOO])
def test_rows_that_are_too_long_for_registers(answer: Answers, name: str) -> None:
    expect_eager(answer("run_triton_cases", name, str(CASES[name].dtypes[0]), True))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tight", [False, True], ids=["whole rows", "rows in pieces"])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_every_width(answer: Answers, name: str, tight: bool) -> None:
    for dtype in CASES[name].dtypes:
        expect_eager(answer("run_triton_cases", name, str(dtype), tight))
