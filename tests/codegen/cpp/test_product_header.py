"""The kernel of products, compiled for vectors of every width, against float64."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import sympy
import torch
from header_levels import level_name, levels

from mixbackend.backends.codegen.interpret.templates import evaluate_template
from mixbackend.backends.codegen.ir.kernel import BufferParameter, BufferView, TemplateKernel
from mixbackend.backends.codegen.schedule.packed_products import panel_columns
from mixbackend.backends.codegen.targets.cpp.build import Toolchain, compile_object
from mixbackend.backends.codegen.targets.cpp.compiler import find_compiler
from mixbackend.backends.codegen.targets.cpp.features import Features
from mixbackend.backends.codegen.targets.cpp.printer import print_module
from mixbackend.contracts import ErrorBudget
from mixbackend.contracts.numerics import find_deviation

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


def _kernel(width: int, biased: bool) -> TemplateKernel:
    symbols = iter(sympy.Symbol(f"p{number}", integer=True, nonnegative=True) for number in range(40))
    views: list[BufferView | None] = []
    buffers: list[BufferParameter] = []
    used: list[sympy.Symbol] = []
    for place, rank in enumerate((3, 3, 1 if biased else 0, 3)):
        if rank == 0:
            views.append(None)
            continue
        made = [next(symbols) for _ in range(2 * rank + 1)]
        name = f"b{len(buffers)}"
        views.append(BufferView(name, tuple(made[:rank]), tuple(made[rank:-1]), made[-1]))
        buffers.append(BufferParameter(name, torch.float32, "read" if place < 3 else "write"))
        used += made
    options = (("width", float(width)),)
    return TemplateKernel(tuple(used), tuple(buffers), "product", options, tuple(views[:3]), tuple(views[3:]))


class _Compiled:
    """Products for one kind of processor: ``<width>_biased`` and ``<width>_plain``."""

    def __init__(self, features: Features, folder: Path) -> None:
        self.lanes = features.vector_bytes // 4
        widths = {panel_columns(sympy.Integer(columns), self.lanes) for columns in range(1, 200)}
        kernels = [(f"{kind}_{width}", _kernel(width, kind == "biased")) for width in widths for kind in KINDS]
        path = folder / "product.so"
        toolchain = Toolchain(find_compiler(), features, openmp=True, folder=folder)
        path.write_bytes(compile_object(print_module(kernels), toolchain))
        self._library = ctypes.CDLL(str(path))

    def run(self, left: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, output: torch.Tensor) -> None:
        left, output = (item if item.dim() == 3 else item[None] for item in (left, output))
        memory = [item for item in (left, packed, bias, output) if item is not None]
        pointers = (ctypes.c_void_p * len(memory))(*(item.data_ptr() for item in memory))
        numbers = [number for item in memory for number in (*item.shape, *item.stride(), 0)]
        function = getattr(self._library, f"{KINDS[bias is None]}_{packed.shape[2]}")
        function(pointers, (ctypes.c_longlong * len(numbers))(*numbers), None)


KINDS = ("biased", "plain")


@pytest.fixture(scope="module", params=levels(), ids=level_name)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Compiled:
    return _Compiled(request.param, tmp_path_factory.mktemp("product"))


def _values(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def _packed(right: torch.Tensor, lanes: int) -> torch.Tensor:
    terms, columns = right.shape
    width = panel_columns(sympy.Integer(columns), lanes)
    panels = -(-columns // width)
    padded = torch.zeros(terms, panels * width)
    padded[:, :columns] = right
    return padded.reshape(terms, panels, width).transpose(0, 1).contiguous()


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("turned", [True, False])
def test_results_are_those_of_float64(compiled: _Compiled, turned: bool, biased: bool) -> None:
    for rows, terms, columns in SIZES:
        left, right = _values(rows, terms), _values(terms, columns, seed=1)
        bias = _values(2 * columns, seed=2)[::2] if biased else None
        output = torch.full((rows + 1, columns + 1), 7.0)
        if turned:
            left, output = left.t().contiguous().t(), output.t().contiguous().t()
        packed, target = _packed(right, compiled.lanes), output[:rows, :columns]
        compiled.run(left, packed, bias, target)
        exact = left.double() @ right.double() + (0.0 if bias is None else bias.double())
        plain = left @ right + (0.0 if bias is None else bias)
        size = f"{rows} {terms} {columns}"
        assert find_deviation(0, target, plain, exact, BUDGET) is None, size
        assert (output[rows:] == 7.0).all() and (output[:, columns:] == 7.0).all(), f"{size}: wrote beyond its result"
        (meant,) = evaluate_template("product", (left, packed, bias), (("width", float(packed.shape[2])),))
        assert find_deviation(0, meant[:, :columns], plain, exact, BUDGET) is None, size


@pytest.mark.parametrize("apart", [0, 1])
def test_batches_one_behind_the_other_and_with_gaps(compiled: _Compiled, apart: int) -> None:
    left, right = _values(3 + apart, 11, 40)[:3, :], _values(40, 30, seed=1)
    output = torch.full((3, 11 + apart, 30), 7.0)[:, :11]
    compiled.run(left, _packed(right, compiled.lanes), None, output)
    assert find_deviation(0, output, left @ right, left.double() @ right.double(), BUDGET) is None


def test_sums_of_nothing_are_the_bias(compiled: _Compiled) -> None:
    bias, output = _values(20), torch.full((3, 20), 7.0)
    compiled.run(_values(3, 0), _packed(_values(0, 20), compiled.lanes), bias, output)
    assert torch.equal(output, bias.expand(3, 20))


def test_no_rows_are_no_work(compiled: _Compiled) -> None:
    compiled.run(_values(0, 4), _packed(_values(4, 20), compiled.lanes), None, torch.empty(0, 20))


def test_what_is_not_finite_stays_in_its_row_and_column(compiled: _Compiled) -> None:
    left, right, output = _values(9, 30), _values(30, 20, seed=1), torch.empty(9, 20)
    left[4, 7] = float("nan")
    right[3, 5] = float("inf")
    compiled.run(left, _packed(right, compiled.lanes), None, output)
    expected = left @ right
    assert torch.equal(output.isnan(), expected.isnan()) and torch.equal(output.isinf(), expected.isinf())


def test_panels_leave_little_empty() -> None:
    columns = {1000: 48, 768: 48, 128: 64, 96: 48, 30522: 48, 64: 64}
    assert {size: panel_columns(sympy.Integer(size), 16) for size in columns} == columns
    assert panel_columns(sympy.Symbol("n"), 16) == 48 and panel_columns(sympy.Integer(24), 8) == 24
