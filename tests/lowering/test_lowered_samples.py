"""torch's operator samples, forward and backward, at every level: only operators of its list, and what eager computes.

A sample of every 40th operator by day. By night samples of every operator: three in float32, one of every other type.
All samples of all types, which are hours of work, with ``MIXBACKEND_NIGHTLY=1``; they can be shared:
``MIXBACKEND_SHARD=2/8`` takes the second eighth of the operators.
"""

from __future__ import annotations

import itertools
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from op_samples import functions_of, inputs_of, operators, traced_sample
from rounding_noise import rounding_noise
from tiers import draws

from mixbackend.contracts import (
    LEVELS,
    LoweringError,
    OpLevel,
    Region,
    SymbolicSize,
    Traits,
    lowered,
    operators_of,
)
from mixbackend.contracts.numerics import find_deviation
from mixbackend.contracts.support import refuse_special
from mixbackend.execute.verify import eager_result, reference_result

NIGHTLY = os.environ.get("MIXBACKEND_NIGHTLY") == "1"
_SHARD, _SHARDS = map(int, os.environ.get("MIXBACKEND_SHARD", "1/1").split("/"))
DTYPES = (torch.float32, torch.float16, torch.float64, torch.int64, torch.bool, torch.complex64, torch.bfloat16)
EVERY = 1 if NIGHTLY else draws(40, 1)
"""Of so many operators one is taken."""
PARTS = draws(1, 8)
"""Tests that share the operators of a type."""
PLACES = (0, 2, 7)[: draws(1, 3)]
"""Which samples of an operator are taken, of float32; the first ones are often the plainest."""
BUDGET = Traits().error_budget

LIMITATIONS = {
    "aten._batch_norm_with_update_functional.default": "reserves memory as it comes",
    "aten._efficientzerotensor.default": "no tensor with memory",
    "aten.as_strided.default": "reads memory by position",
    "aten.as_strided_copy.default": "reads memory by position",
    "aten.as_strided_scatter.default": "reads memory by position",
    "aten.hash_tensor.default": "bits of its own",
    "aten.native_batch_norm.default": "writes statistics that its schema does not mention",
    "aten.resize_as.default": "memory as it comes",
    "aten.tril_indices.default": "torch fills memory as it comes",
    "aten.triu_indices.default": "torch fills memory as it comes",
    "torch_nn._linear_cross_entropy_batch_chunked.default": "an operator of torch.nn, which nothing takes apart",
    "torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default": "the same",
}
"""Pure operators that are of no lower level, or not of every one."""

CASES = [*itertools.product(("prims", "core_aten"), DTYPES)]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Samples that torch refuses to trace are no news."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def _samples(dtype: torch.dtype, part: int = 0, parts: int = 1) -> Iterator[tuple[str, Region, list[torch.Tensor]]]:
    places = PLACES if dtype is torch.float32 else PLACES[:1]
    for info in operators(dtype)[_SHARD - 1 :: EVERY * _SHARDS][part::parts]:
        torch.manual_seed(0)
        given = enumerate(info.sample_inputs("cpu", dtype))
        for number, sample in given if NIGHTLY else itertools.islice(given, places[-1] + 1):
            if not NIGHTLY and number not in places:
                continue
            functions, tensors = functions_of(info, sample)
            for function in functions:
                region = traced_sample(function, tensors)
                if region is not None:
                    yield f"{info.full_name} #{number} {function.__name__}", region, inputs_of(region, tensors)


def _depends_on_values(region: Region) -> bool:
    """In the shape of a tensor, or in a number that an operator is given."""
    numbers = [meta for view in region.views for meta in (*(item.meta for item in view.inputs), *view.outputs)]
    if any(isinstance(meta, SymbolicSize) and meta.hint is None for meta in numbers):
        return True
    return any(size.hint is None for meta in _metas(region) for size in (*meta.shape, *meta.stride) if _symbolic(size))


def _metas(region: Region) -> Iterator[Any]:
    for view in region.views:
        yield from (*view.input_tensors, *view.output_tensors)


def _symbolic(size: object) -> bool:
    return not isinstance(size, int)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("level", "dtype"), CASES, ids=lambda value: str(value).removeprefix("torch."))
def test_a_lowered_sample_is_of_its_level_and_means_the_same(level: OpLevel, dtype: torch.dtype, part: int) -> None:
    right, wrong = 0, []
    for name, region, inputs in _samples(dtype, part, PARTS):
        special = any(refuse_special(view) for view in region.views) or _depends_on_values(region)
        try:
            low = lowered(region, level)
        except LoweringError as error:
            refused = {view.op for view in region.views if not special} & set(LIMITATIONS)
            wrong += [f"{name}: {error.what}"] if not special and not refused else []
            continue
        beyond = {view.op for view in low.views} - {"getitem"} - operators_of(level)
        wrong += [f"{name}: {sorted(beyond)} in {level}"] if beyond and not special else []
        problems = _problems(region, low, inputs)
        wrong += [f"{name}: {problem}" for problem in problems]
        right += not problems
    print(f"\n{level} {dtype}: {right} samples")
    assert wrong == []
    assert right >= 10 // _SHARDS


@pytest.mark.parametrize("level", ["core_aten", "prims"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_slope_of_hardsigmoid_is_eagers(level: OpLevel, dtype: torch.dtype) -> None:
    """Eager multiplies by a sixth in float32, whatever the type; torch's decomposition does not."""
    tensors = [torch.linspace(0.1, 2, 40, dtype=dtype), torch.linspace(-4, 4, 40, dtype=dtype)]
    region = traced_sample(lambda *given: [torch.ops.aten.hardsigmoid_backward(*given)], tensors)
    assert region is not None and _problems(region, lowered(region, level), inputs_of(region, tensors)) == []


@pytest.mark.parametrize("level", ["core_aten", "prims"])
@pytest.mark.parametrize("index", [torch.tensor(3), torch.tensor([[-1, 0], [5, -6]]), torch.zeros(0, 2).long()])
def test_take_reads_an_index_of_any_shape(level: OpLevel, index: torch.Tensor) -> None:
    tensors = [torch.randn(3, 2).t(), index]
    region = traced_sample(lambda *given: [torch.take(*given)], tensors)
    assert region is not None
    low = lowered(region, level)
    assert {view.op for view in low.views} - {"getitem"} <= operators_of(level)
    assert _problems(region, low, inputs_of(region, tensors)) == []


def _problems(region: Region, low: Region, inputs: Sequence[torch.Tensor]) -> list[str]:
    """What is wrong with the results of a lowered region, by the float64 rule."""
    try:
        with torch.no_grad():
            expected = eager_result(region, inputs)
    except Exception:  # eager refuses the values
        return []
    try:
        with torch.no_grad():
            # Code that fx writes knows no complex numbers that are none; its interpreter reads the graph itself.
            results = torch.fx.Interpreter(low.graph_module).run(*inputs)
            reference = reference_result(region, inputs, expected)
    except Exception as error:  # collected: one report of all
        return [f"{type(error).__name__} {str(error)[:300]}"]
    found = []
    for place, (result, eager, exact) in enumerate(zip(results, expected, reference, strict=True)):
        deviation = find_deviation(place, result, eager, exact, BUDGET)
        if deviation is not None and deviation.measure in ("rms", "max"):
            noise = rounding_noise(region, inputs, expected)
            deviation = find_deviation(place, result, eager, exact, BUDGET, noise[place])
        found += [] if deviation is None else [f"{deviation} in {[view.op for view in region.views]}"]
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_captured_samples_are_of_the_level_aten(dtype: torch.dtype, part: int) -> None:
    assert LEVELS[0] == "aten"
    views = [view for _, region, _ in _samples(dtype, part, PARTS) for view in region.views if not refuse_special(view)]
    names = {view.op for view in views if view.op.startswith("aten.")}
    assert len(names) > 10 and sorted(names - operators_of("aten")) == []
