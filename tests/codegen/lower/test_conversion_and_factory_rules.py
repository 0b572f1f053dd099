"""Conversions round as torch does; tensors made from numbers hold what torch's hold; promotion is torch's."""

from __future__ import annotations

import itertools

import pytest
import sympy
import torch

from mixbackend.backends.codegen.ir.scalar import Constant
from mixbackend.backends.codegen.lower.judging import judge_op
from mixbackend.backends.codegen.lower.lowering import STORAGE_TYPES
from mixbackend.backends.codegen.lower.promotion import constant, result_type
from mixbackend.backends.codegen.lower.rules import RefusedError
from mixbackend.backends.codegen.lower.tensor import Tensor
from mixbackend.contracts import Unsupported
from mixbackend.contracts.region_text import read_region_text

_TYPES = sorted(STORAGE_TYPES, key=str)


def _tensor(dtype, rank):
    zero = constant(0, dtype)
    return Tensor((sympy.Integer(2),) * rank, dtype, lambda index: zero)


@pytest.mark.parametrize(("first", "second"), itertools.product((0, 1), (0, 1)))
def test_result_type_of_tensors_is_torchs(first, second):
    for left, right in itertools.product(_TYPES, _TYPES):
        expected = torch.result_type(torch.zeros((2,) * first, dtype=left), torch.zeros((2,) * second, dtype=right))
        assert result_type(_tensor(left, first), _tensor(right, second)) == expected, (left, right)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [True, 3, 2.5])
def test_result_type_with_a_number_is_torchs(rank, number):
    for dtype in _TYPES:
        expected = torch.result_type(torch.zeros((2,) * rank, dtype=dtype), number)
        assert result_type(_tensor(dtype, rank), number) == expected, dtype


def test_constants_wrap_and_refuse():
    assert constant(-1, torch.uint8) == Constant(torch.uint8, 255)
    assert constant(2.7, torch.int32) == Constant(torch.int32, 2)
    with pytest.raises(RefusedError):
        constant(1j, torch.float32)
    with pytest.raises(RefusedError):
        constant(sympy.Symbol("n", real=True), torch.int64)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("source", _TYPES, ids=str)
def test_conversions(source, check_lowering):
    values = torch.tensor([0.0, 1.0, 2.49, 3.5, 100.2, 31.7, 0.1])
    tensor = values.to(source)
    # The sum keeps the converted value from being stored, so that its rounding is the conversion's own.
    check_lowering(lambda x: tuple(x.to(dtype).to(torch.float64) + 1.0 for dtype in _TYPES), [tensor])


def test_a_conversion_rounds_without_a_store(check_lowering):
    values = torch.randn(100) * 1000
    graph = check_lowering(lambda x: x.to(torch.bfloat16).float() - x, [values])
    assert "round_bfloat16" in str(graph.stages)


def test_a_scalar_tensor_is_rounded_to_the_type_of_the_sum(check_lowering):
    check_lowering(lambda x, y: (x + y, x * y, x == y), [torch.randn(8).half(), torch.tensor(0.1)])


def test_numbers_as_tensors(check_lowering):
    check_lowering(
        lambda x: (
            torch.full((3, 5), 0.1, dtype=torch.float16),
            torch.full((3,), 7, dtype=torch.uint8),
            torch.full((2,), 2.7, dtype=torch.int64),
            torch.scalar_tensor(0.1, dtype=torch.bfloat16) + x,
            torch.zeros(3, 2, dtype=torch.bool),
            torch.ones_like(x),
            x.new_zeros(4),
            x.new_ones((), dtype=torch.int32),
            torch.full_like(x, float("inf")),
            torch.fill(x, 3.0),
            torch.fill(x, x[0, 0]),
        ),
        [torch.randn(3, 5)],
    )


def test_ranges(check_lowering):
    check_lowering(
        lambda x: (
            torch.arange(7),
            torch.arange(2, 9),
            torch.arange(9, 2, -3),
            torch.arange(3, dtype=torch.float16),
            torch.arange(0.0, 1.0, 0.1),
            torch.arange(-1.5, 2.0, 0.25, dtype=torch.float64),
            torch.arange(5.0),
            torch.arange(2, 40, 7, dtype=torch.uint8),
            torch.linspace(-3, 7, 11),
            torch.linspace(0.1, 0.9, 8, dtype=torch.float64),
            torch.linspace(2.0, 5.0, 1),
            torch.eye(4),
            torch.eye(3, 5, dtype=torch.int64),
            x + 1,
        ),
        [torch.randn(2)],
    )


def test_copies(check_lowering):
    check_lowering(
        lambda x, y: (
            torch.ops.aten.copy(x, y),
            x.clone() + y,
            x.to(torch.float64, memory_format=torch.preserve_format),
        ),
        [torch.randn(1, 2, 3, 4), torch.randn(4)],
    )


def test_an_operator_of_a_type_that_it_is_not_defined_for_is_refused():
    """torch writes such a graph for a tensor that was expanded to its own symbolic sizes and written into."""
    region = read_region_text(
        """mixbackend-region 1 inference
%0 = input(activation, tensor(bool, [4], [1], "cpu"))
%1 = aten.sub.Tensor(self=%0, other=%0, alpha=1) -> tensor(bool, [4], [1], "cpu")
return(%1, tensor(bool, [4], [1], "cpu"), alias=none, exact=true)
"""
    )
    verdict = judge_op(region.views[0])
    assert isinstance(verdict, Unsupported)
    assert (verdict.code, verdict.detail) == ("dtype", "aten.sub.Tensor: sub is not defined for torch.bool")
