"""What inductor would compile wrong is refused; the nearest use that it compiles right is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mixbackend.backends.inductor import InductorBackend
from mixbackend.contracts import Supported, Unsupported
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten
X, ROW = torch.randn(4, 6), torch.randn(6)
MASK, ROWS, COLUMNS = torch.tensor([[True], [False]]), torch.tensor([[0], [1]]), torch.tensor([[2, 3]])


def refused(function: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool = False) -> set[str]:
    """Codes of the refusals of a region's ops."""
    region = trace_region(function, list(inputs), dynamic=dynamic)
    verdicts = [InductorBackend().judge(view) for view in region.views]
    assert all(isinstance(verdict, (Supported, Unsupported)) for verdict in verdicts)
    return {verdict.code for verdict in verdicts if isinstance(verdict, Unsupported)}


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, y: aten.slice_scatter(x, y, 0, 0, 2), (X, X[:2].clone())),
        (lambda x: aten.std_mean.correction(x, None), (X,)),
        (lambda x: aten.var_mean.correction(x, [1]), (X,)),
        (lambda x, m, i, j: aten._unsafe_masked_index(x, m, [i, j], 0.0), (X, MASK, ROWS, COLUMNS)),
        (
            lambda x, m, i, j, v: aten._unsafe_masked_index_put_accumulate(x, m, [i, j], v),
            (X, MASK, ROWS, COLUMNS, torch.randn(2, 2)),
        ),
    ],
    ids=["slice_scatter", "std_mean", "var_mean", "masked_index", "masked_index_put"],
)
def test_operators_that_need_known_sizes(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> None:
    assert refused(function, *inputs, dynamic=True) == {"dynamic-shape"}
    assert refused(function, *inputs) == set()


def test_statistics_of_nothing() -> None:
    assert refused(lambda x: aten.var_mean.correction(x, None), torch.empty(0, 3)) == {"dynamic-shape"}


def test_a_batch_norm_that_writes_its_statistics() -> None:
    def norm(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, training: bool) -> Any:
        return aten.native_batch_norm(x, None, None, mean, var, training, 0.1, 1e-5)[0]

    given = (X, ROW.clone(), ROW.abs())
    assert refused(lambda x, m, v: norm(x, m, v, True), *given) == {"effect"}
    assert refused(lambda x, m, v: norm(x, m, v, False), *given) == set()


def test_any_of_bytes() -> None:
    assert refused(lambda x: (aten.any(x), aten.any.dim(x, 0)), (X > 0).to(torch.uint8)) == {"dtype"}
    assert refused(lambda x: (aten.any(x), aten.any.dim(x, 0)), X > 0) == set()
