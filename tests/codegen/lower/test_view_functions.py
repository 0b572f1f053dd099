"""Views as index transformations: affine where they can be, and exact strides of an input."""

from __future__ import annotations

import pytest
import sympy
import torch

from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo
from mixbackend.backends.codegen.ir.scalar import Load
from mixbackend.backends.codegen.lower import view
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.tensor import Tensor
from mixbackend.contracts import TensorMeta


def _input(lowering: Lowering, *sizes: int, strides: tuple[int, ...] | None = None) -> Tensor:
    strides = strides or torch.empty(sizes, device="meta").stride()
    lowering.input("x", TensorMeta(sizes, strides, torch.float32, torch.device("cpu")))
    return lowering.value("x")


def _index(lowering: Lowering, tensor: Tensor) -> tuple[sympy.Expr, ...]:
    loops = lowering.loops(tensor.sizes)
    load = tensor.at(tuple(loop.index for loop in loops))
    assert isinstance(load, Load)
    return load.index


def test_a_split_dimension_stays_affine():
    lowering = Lowering()
    index = _index(lowering, view.reshape(lowering, _input(lowering, 2, 12, 5), (2, 3, 4, 5)))
    assert not any(part.has(FloorDiv, Modulo) for part in index)


def test_merged_dimensions_divide_only_in_their_group():
    lowering = Lowering()
    index = _index(lowering, view.reshape(lowering, _input(lowering, 2, 3, 4, 5), (2, 12, 5)))
    assert [part.has(FloorDiv) or part.has(Modulo) for part in index] == [False, True, True, False]


def test_split_after_merge_is_affine_again():
    lowering = Lowering()
    merged = view.reshape(lowering, _input(lowering, 2, 3, 4, 5), (24, 5))
    index = _index(lowering, view.reshape(lowering, merged, (2, 3, 4, 5)))
    assert all(part.is_Symbol for part in index)


@pytest.mark.parametrize(
    ("shape", "make", "same"),
    [
        ((4, 6), lambda low, t: view.reshape(low, t, (2, 2, 6)), lambda t: t.view(2, 2, 6)),
        ((4, 6), lambda low, t: view.permute(t, (1, 0)), lambda t: t.t()),
        ((4, 6), lambda low, t: view.reshape(low, view.permute(t, (1, 0)), (3, 2, 4)), lambda t: t.t().view(3, 2, 4)),
        ((4, 6), lambda low, t: view.slice_axis(t, 1, 1, 2, 3), lambda t: t[:, 1:5:3]),
        ((4, 6), lambda low, t: view.select(t, 0, 2), lambda t: t[2]),
        ((4, 1), lambda low, t: view.expand(t, (3, 4, 6)), lambda t: t.expand(3, 4, 6)),
        ((4, 1), lambda low, t: view.squeeze(t, (0, 1)), lambda t: t.squeeze()),
        ((4, 6), lambda low, t: view.unsqueeze(t, 1), lambda t: t.unsqueeze(1)),
        ((4, 6), lambda low, t: view.diagonal(t, 0, 1, 2, 4), lambda t: t.diagonal(2)),
        ((4, 6), lambda low, t: view.diagonal(t, 1, 0, 1, 3), lambda t: t.diagonal(1, 1, 0)),
        ((4, 9), lambda low, t: view.unfold(t, 1, 4, 2, 3), lambda t: t.unfold(1, 4, 2)),
    ],
)
def test_strides_of_a_view_are_torchs(shape, make, same):
    lowering = Lowering()
    made, expected = make(lowering, _input(lowering, *shape)), same(torch.empty(shape))
    assert tuple(made.sizes) == tuple(expected.shape)
    assert made.strided is not None
    assert tuple(made.strided.strides) == expected.stride()
    assert made.strided.offset == expected.storage_offset()


def test_a_reshape_that_moves_data_is_no_view():
    lowering = Lowering()
    assert view.reshape(lowering, view.permute(_input(lowering, 4, 6), (1, 0)), (24,)).strided is None


def test_symbolic_groups_are_matched():
    lowering = Lowering()
    batch, length = (sympy.Symbol(name, integer=True, positive=True) for name in ("s0", "s1"))
    lowering.input("x", TensorMeta((1, 1, 8), (8, 8, 1), torch.float32, torch.device("cpu")))
    source = Tensor((batch, length, sympy.Integer(8)), torch.float32, lambda index: Load(torch.float32, "x", index))
    merged = view.reshape(lowering, source, (batch * length, 8))
    index = _index(lowering, view.reshape(lowering, merged, (batch, length, 2, 4)))
    assert not any(part.has(FloorDiv, Modulo) for part in index)
