"""The kernel of products, for vectors of every width, against float64: matrices, windows, and what ends them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as functional
from header_levels import KernelsOnDemand, level_name, levels
from team_calls import call_kernel
from torch import Tensor

from mixbackend.backends.codegen.interpret.templates import evaluate_template
from mixbackend.backends.codegen.ir.check_templates import check_template_kernel
from mixbackend.backends.codegen.ir.kernel import BufferParameter, BufferView, TemplateKernel
from mixbackend.backends.codegen.ir.scalar import Constant, Expr, Local, apply
from mixbackend.backends.codegen.ir.templates import RESULT, other
from mixbackend.backends.codegen.schedule.panels import panel_columns
from mixbackend.backends.codegen.targets.cpp.features import Features
from mixbackend.contracts import ErrorBudget
from mixbackend.contracts.numerics import find_deviation

ZERO = Constant(torch.float32, 0.0)
BUDGET = ErrorBudget(factor=4.0, floor=64.0)
SIZES = (
    (1, 1, 1),
    (1, 40, 100),
    (5, 128, 48),
    (8, 129, 64),
    (13, 300, 65),
    (64, 256, 96),
    (101, 17, 130),
    (400, 130, 33),
)
"""Rows, terms and columns: whole and broken tiles, panels and blocks."""

FINISHES: dict[str, Expr] = {
    "finished": apply("maximum", apply("add", Local(torch.float32, RESULT), Local(torch.float32, other(0))), ZERO),
    "alone": apply("maximum", Local(torch.float32, RESULT), ZERO),
}


def _options(width: int) -> tuple[tuple[str, float], ...]:
    """Of a product without groups."""
    return ("width", float(width)), ("bits", 0.0), ("group", 0.0)


def _kernel(width: int, kind: str) -> TemplateKernel:
    """A product with a bias, or with something that is computed of its sums, or with neither."""
    symbols = iter(sympy.Symbol(f"p{number}", integer=True, nonnegative=True) for number in range(60))
    views: list[BufferView | None] = []
    buffers: list[BufferParameter] = []
    used: list[sympy.Symbol] = []
    for rank in (6, 5, 1 if kind == "biased" else 0, 0, 0, *((4,) if kind == "finished" else ()), 4):
        if rank == 0:
            views.append(None)
            continue
        made = [next(symbols) for _ in range(2 * rank + 1)]
        name = f"b{len(buffers)}"
        views.append(BufferView(name, tuple(made[:rank]), tuple(made[rank:-1]), made[-1]))
        buffers.append(BufferParameter(name, torch.float32, "read"))
        used += made
    buffers[-1] = replace(buffers[-1], access="write")
    options = _options(width)
    operands, results = tuple(views[:-1]), tuple(views[-1:])
    kernel = TemplateKernel(tuple(used), tuple(buffers), "product", options, operands, results, FINISHES.get(kind))
    check_template_kernel(kernel)
    return kernel


def _named(name: str) -> TemplateKernel:
    kind, width = name.split("_")
    return _kernel(int(width), kind)


class _Compiled:
    """Products for one kind of processor: ``<kind>_<width>``."""

    def __init__(self, features: Features, folder: Path) -> None:
        self._kernels = KernelsOnDemand(features, _named, folder)
        self.lanes = self._kernels.lanes

    def run(self, left: Tensor, packed: Tensor, bias: Tensor | None, output: Tensor, kind: str = "") -> None:
        """Matrices, or batches of them."""
        left, output = (item if item.dim() == 3 else item[None] for item in (left, output))
        self.windows(left[:, None, :, None, None], packed, bias, output[:, None], kind)

    def windows(self, left: Tensor, packed: Tensor, beside: Tensor | None, output: Tensor, kind: str = "") -> None:
        """Rows and terms in three dimensions each; ``beside`` is a bias, or what else is read."""
        memory = [item for item in (left, packed, beside, output) if item is not None]
        sizes = [number for item in memory for number in (*item.shape, *item.stride(), 0)]
        kind = kind or ("plain" if beside is None else "biased")
        call_kernel(self._kernels[f"{kind}_{packed.shape[-1]}"], memory, sizes)


@pytest.fixture(scope="module", params=levels(), ids=level_name)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Compiled:
    return _Compiled(request.param, tmp_path_factory.mktemp("product"))


def _values(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def _packed(right: Tensor, lanes: int) -> Tensor:
    """A matrix, or [window line, window place, term, column], in panels."""
    *terms, columns = right.shape
    width = panel_columns(sympy.Integer(columns), lanes)
    panels = -(-columns // width)
    padded = functional.pad(right, (0, panels * width - columns)).reshape(*terms, panels, width)
    return padded.movedim(-2, 0).reshape(panels, *(1,) * (3 - len(terms)), *terms, width).contiguous()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("turned", [True, False])
def test_results_are_those_of_float64(compiled: _Compiled, turned: bool, biased: bool) -> None:
    for rows, terms, columns in SIZES:
        left, right = _values(rows, terms), _values(terms, columns, seed=1)
        bias = _values(2 * columns, seed=2)[::2] if biased else None
        output = torch.full((rows + 1, columns + 1), 7.0)
        if turned:
            left = left.t().contiguous().t()
        packed, target = _packed(right, compiled.lanes), output[:rows, :columns]
        compiled.run(left, packed, bias, target)
        exact = left.double() @ right.double() + (0.0 if bias is None else bias.double())
        plain = left @ right + (0.0 if bias is None else bias)
        size = f"{rows} {terms} {columns}"
        assert find_deviation(0, target, plain, exact, BUDGET) is None, size
        assert (output[rows:] == 7.0).all() and (output[:, columns:] == 7.0).all(), f"{size}: wrote beyond its result"
        rows = left[None, None, :, None, None]
        (meant,) = evaluate_template("product", (rows, packed, bias, None, None), _options(packed.shape[-1]))
        assert find_deviation(0, meant[0, 0, :, :columns], plain, exact, BUDGET) is None, size


@pytest.mark.sampled(1)
@pytest.mark.parametrize("apart", [0, 1])
def test_batches_one_behind_the_other_and_with_gaps(compiled: _Compiled, apart: int) -> None:
    left, right = _values(3 + apart, 11, 40)[:3, :], _values(40, 30, seed=1)
    output = torch.full((3, 11 + apart, 30), 7.0)[:, :11]
    compiled.run(left, _packed(right, compiled.lanes), None, output)
    assert find_deviation(0, output, left @ right, left.double() @ right.double(), BUDGET) is None


@pytest.mark.sampled(1)
def test_sums_of_nothing_are_the_bias(compiled: _Compiled) -> None:
    bias, output = _values(20), torch.full((3, 20), 7.0)
    compiled.run(_values(3, 0), _packed(_values(0, 20), compiled.lanes), bias, output)
    assert torch.equal(output, bias.expand(3, 20))


def test_no_rows_are_no_work(compiled: _Compiled) -> None:
    compiled.run(_values(0, 4), _packed(_values(4, 20), compiled.lanes), None, torch.empty(0, 20))


@pytest.mark.sampled(1)
def test_what_is_not_finite_stays_in_its_row_and_column(compiled: _Compiled) -> None:
    left, right, output = _values(9, 30), _values(30, 20, seed=1), torch.empty(9, 20)
    left[4, 7] = float("nan")
    right[3, 5] = float("inf")
    compiled.run(left, _packed(right, compiled.lanes), None, output)
    expected = left @ right
    assert torch.equal(output.isnan(), expected.isnan()) and torch.equal(output.isinf(), expected.isinf())


WINDOWS = (
    (2, 5, 9, 7, 40, (3, 3), (1, 1), (1, 1)),
    (1, 3, 20, 21, 64, (7, 7), (2, 2), (1, 1)),
    (3, 16, 9, 9, 24, (2, 2), (2, 2), (1, 1)),
    (2, 130, 6, 5, 50, (3, 2), (1, 2), (2, 1)),
    (2, 8, 1, 30, 96, (1, 5), (1, 3), (1, 2)),
)
"""Images (batch, channels, height, width), columns, windows, their strides and dilations."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", WINDOWS, ids=str)
def test_windows_of_images(compiled: _Compiled, case: Any) -> None:
    batch, channels, height, width, columns, (lines, places), stride, dilation = case
    image, weight = _values(batch, height, width, channels), _values(columns, channels, lines, places, seed=1)
    turned = image.movedim(-1, 1)
    plain = functional.conv2d(turned, weight, None, stride, 0, dilation)
    exact = functional.conv2d(turned.double(), weight.double(), None, stride, 0, dilation)
    rows, steps = plain.shape[2:], image.stride()
    left = image.as_strided(
        (batch, *rows, lines, places, channels),
        (steps[0], steps[1] * stride[0], steps[2] * stride[1], steps[1] * dilation[0], steps[2] * dilation[1], 1),
    )
    output = torch.full((batch, *rows, columns), 7.0)
    compiled.windows(left, _packed(weight.permute(2, 3, 1, 0), compiled.lanes), None, output)
    assert find_deviation(0, output.movedim(-1, 1), plain, exact, BUDGET) is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["finished", "alone"])
@pytest.mark.parametrize("apart", [False, True])
def test_what_is_computed_of_sums(compiled: _Compiled, kind: str, apart: bool) -> None:
    """Beside the sums lies another matrix: as they do, or turned, in which case rows are no longer one dimension."""
    for rows, terms, columns in (*SIZES, (7, 0, 20)):
        left, right = _values(2, 3, rows, terms), _values(terms, columns, seed=1)
        beside = _values(2, 3, rows, columns, seed=2)
        beside = beside.transpose(0, 1).contiguous().transpose(0, 1) if apart else beside
        output, packed = torch.full((2, 3, rows, columns), 7.0), _packed(right, compiled.lanes)
        given = beside if kind == "finished" else None
        compiled.windows(left[:, :, :, None, None], packed, given, output, kind)
        plain = torch.relu(left @ right + (beside if kind == "finished" else 0.0))
        exact = torch.relu(left.double() @ right.double() + (beside.double() if kind == "finished" else 0.0))
        size = f"{rows} {terms} {columns}"
        assert find_deviation(0, output, plain, exact, BUDGET) is None, size
        operands = (left[:, :, :, None, None], packed, None, None, None, *((beside,) if given is not None else ()))
        (meant,) = evaluate_template("product", operands, _options(packed.shape[-1]), FINISHES[kind])
        assert find_deviation(0, meant[..., :columns], plain, exact, BUDGET) is None, size


@pytest.mark.sampled(1)
def test_a_column_for_all_is_read_beside_the_sums(compiled: _Compiled) -> None:
    left, right, beside = _values(1, 1, 9, 30), _values(30, 70, seed=1), _values(1, 1, 9, 1, seed=2)
    output = torch.empty(1, 1, 9, 70)
    given = beside.expand(1, 1, 9, 70)
    compiled.windows(left[:, :, :, None, None], _packed(right, compiled.lanes), given, output, "finished")
    torch.testing.assert_close(output, torch.relu(left @ right + beside))


def test_panels_leave_little_empty() -> None:
    columns = {1000: 48, 768: 48, 128: 64, 96: 48, 30522: 48, 64: 64, 16: 16, 24: 32, 8: 16, 40: 48}
    assert {size: panel_columns(sympy.Integer(size), 16) for size in columns} == columns
    assert (
        panel_columns(sympy.Symbol("n"), 16) == 48
        and panel_columns(sympy.Integer(24), 8) == 24
        and panel_columns(sympy.Integer(4), 8) == 8
    )
