"""Operator samples whose results are sparse are compared as dense ones.

Before, the process of the check ended on them.
"""

from __future__ import annotations

import pytest

from mixbackend.benchmarks.conformance.operator_worker import serve


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("operator", "dtype"),
    [("to_sparse", "float32"), ("to_sparse", "int64"), ("sparse.sampled_addmm", "float32")],
)
def test_sparse_results_are_compared(operator: str, dtype: str) -> None:
    request = {"operator": operator, "dtype": dtype, "first": 0, "count": 1}
    answer = serve(request, {"select": "off"})
    assert answer["wrong"] == []
    assert answer["tally"]["right"] == 1
