"""Attention compiled: the kernel against its interpreter, eager and float64, in the layouts that models have."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from region_arguments import arguments
from tiers import draws

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.codegen.interpret.program import interpret_program
from mixbackend.backends.codegen.ir.check import check_program, check_stages
from mixbackend.backends.codegen.ir.kernel import TemplateKernel
from mixbackend.backends.codegen.ir.program import Program
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.contracts import Region, Supported
from mixbackend.contracts.numerics import find_deviation
from mixbackend.execute.verify import eager_result, reference_result
from mixbackend.graph.trace import trace_region

attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
attend = functools.partial(attention, scale=0.2)
"""With one scale for all widths: few kernels to compile."""
BACKEND = CodegenBackend()
HALVES = (torch.bfloat16, torch.float16)


def values(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tensors(batch: int, heads: int, queries: int, keys: int, width: int, **options: Any) -> list[torch.Tensor]:
    sizes = ((batch, heads, queries, width), *[(batch, heads, keys, width)] * 2)
    return [values(*size, seed=seed, **options) for seed, size in enumerate(sizes)]


def check(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], interpreted: bool = True
) -> tuple[Program, list[torch.Tensor]]:
    """The program of a function and its results, after they were held against the interpreter and eager."""
    region = trace_region(function, inputs)
    inputs = arguments(region, inputs)
    assert [verdict for view in region.views if not isinstance(verdict := BACKEND.judge(view), Supported)] == []
    check_stages(lower_region(region))
    program = BACKEND.program(region)
    check_program(program)
    results = list(BACKEND.compile(region).run(inputs))
    hold_against_eager(region, inputs, results)
    if interpreted:
        hold_against_eager(region, inputs, interpret_program(program, inputs))
    return program, results


def hold_against_eager(region: Region, inputs: Sequence[Any], results: Sequence[torch.Tensor]) -> None:
    for result, eager in zip(results, eager_result(region, inputs), strict=True):
        assert (result.shape, result.stride(), result.dtype) == (eager.shape, eager.stride(), eager.dtype)
    find_difference(region, inputs, results)


def find_difference(region: Region, inputs: Sequence[Any], results: Sequence[torch.Tensor]) -> None:
    expected = eager_result(region, inputs)
    reference = reference_result(region, inputs, expected)
    for index, (result, eager, exact) in enumerate(zip(results, expected, reference, strict=True)):
        deviation = find_deviation(index, result, eager, exact, BACKEND.traits().error_budget)
        assert deviation is None, f"{deviation}\n{result}\n{eager}"


def names(program: Program) -> list[str]:
    """What each call of a program is."""
    return [call.kernel.name if isinstance(call.kernel, TemplateKernel) else "loops" for call in program.calls]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("causal", [False, True])
def test_every_width_and_length(causal: bool) -> None:
    for queries, keys in ((1, 1), (1, 70), (4, 150), (16, 16), (49, 49), (97, 131)):
        check(lambda q, k, v: attend(q, k, v, 0.0, causal), tensors(1, 2, queries, keys, 40))
    for width in (1, 8, 16, 32, 64, 80, 96, 128, 160):
        check(lambda q, k, v: attend(q, k, v, 0.0, causal), tensors(1, 2, 33, 70, width))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", HALVES)
def test_half_types_are_computed_in_float32(dtype: torch.dtype) -> None:
    mask = values(50, 70, seed=5).to(dtype)
    for width in (32, 40):
        inputs = tensors(2, 3, 50, 70, width, dtype=dtype)
        check(lambda q, k, v: attend(q, k, v), inputs)
        check(lambda q, k, v, m: attend(q, k, v, 0.0, True, attn_mask=m), [*inputs, mask])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "sizes", [(2, 3, 37, 50), (1, 3, 37, 50), (2, 1, 37, 50), (2, 1, 1, 50), (2, 3, 37, 1), (37, 50), (1, 1)], ids=str
)
def test_masks_of_every_broadcast(sizes: tuple[int, ...]) -> None:
    inputs = [*tensors(2, 3, 37, 50, 32), values(*sizes, seed=7)]
    check(lambda q, k, v, m: attend(q, k, v, attn_mask=m), inputs)
    check(lambda q, k, v, m: attend(q, k, v, 0.0, True, attn_mask=m), inputs)
    check(lambda q, k, v, m: attend(q, k, v, attn_mask=m.expand(2, 3, 37, 50)), inputs)
    check(lambda q, k, v, m: attend(q, k, v, attn_mask=torch.where(m > 0, 0.0, -math.inf)), inputs)


def test_masks_of_other_strides_and_types() -> None:
    inputs = tensors(2, 3, 37, 50, 32)
    turned, spread = values(2, 3, 50, 37).transpose(2, 3), values(2, 3, 37, 100)[..., ::2]
    for mask in (turned, spread):
        check(lambda q, k, v, m: attend(q, k, v, attn_mask=m), [*inputs, mask])
    for dtype in HALVES[: draws(1, 2)]:
        half = tensors(2, 3, 37, 50, 32, dtype=dtype)
        check(lambda q, k, v, m: attend(q, k, v, attn_mask=m), [*half, values(2, 3, 37, 50, seed=3)])


def test_scales() -> None:
    for scale in (-0.5, None)[: draws(1, 2)]:
        check(lambda q, k, v, s=scale: attention(q, k, v, scale=s), tensors(1, 2, 20, 33, 24))


def test_large_scores_do_not_overflow() -> None:
    query, key, value = tensors(1, 2, 20, 150, 24)
    check(lambda q, k, v: attend(q, k, v), [query * 40, key * 40, value])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_strides_of_every_kind(dtype: torch.dtype) -> None:
    packed = values(2, 50, 3 * 3 * 32, dtype=dtype)
    across = values(2, 3, 32, 50, dtype=dtype).transpose(2, 3)
    spread = values(2, 3, 100, 64, dtype=dtype)[:, :, ::2, ::2]
    shared = values(1, 3, 50, 32, dtype=dtype).expand(2, 3, 50, 32)
    plain = values(2, 3, 50, 32, dtype=dtype)

    def of_packed(x: torch.Tensor) -> Any:
        return attend(*x.view(2, 50, 3, 3, 32).permute(2, 0, 3, 1, 4).unbind(0))

    check(of_packed, [packed])
    for query, key, value in itertools.permutations((across, spread, shared, plain), 3):
        inputs = [query, key, value]
        region = trace_region(lambda q, k, v: attend(q, k, v), inputs)
        # Eager's own kernel takes it for granted that features lie side by side.
        dense = [tensor.contiguous() for tensor in inputs]
        results = BACKEND.compile(region).run(inputs)
        assert [result.stride() for result in results] == [output.meta.stride for output in region.outputs]
        find_difference(region, dense, results)


def test_operands_that_are_no_views_are_made_first() -> None:
    def of_reversed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return attend(q.flip(2), torch.relu(k), torch.cat((v[:, :, :20], v[:, :, 20:] * 2), 2))[0]

    program, _ = check(of_reversed, tensors(2, 3, 37, 50, 32))
    assert names(program).count("attention") == 1


def test_one_tensor_as_everything() -> None:
    check(lambda x: attend(x, x, x), [values(2, 3, 37, 32)])


def test_results_go_where_a_reshape_wants_them() -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        query, key, value = x.view(2, 37, 3, 3, 32).permute(2, 0, 3, 1, 4).unbind(0)
        return attend(query, key, value)[0].transpose(1, 2).reshape(2, 37, 96)

    program, _ = check(block, [values(2, 37, 288)])
    assert names(program) == ["attention"] and program.workspace_bytes == 0


def test_what_comes_after_is_another_kernel() -> None:
    def block(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.relu(attend(q, k, v)[0].transpose(1, 2).reshape(2, 37, 96)) + 1

    program, _ = check(block, tensors(2, 3, 37, 50, 32))
    assert names(program) == ["attention", "loops"]


def test_hidden_rows_and_special_values() -> None:
    query, key, value = tensors(1, 2, 40, 70, 32)
    mask = torch.zeros(40, 70)
    mask[3] = mask[7, :66] = mask[9, 64:] = -math.inf
    check(lambda q, k, v, m: attend(q, k, v, attn_mask=m), [query, key, value, mask])
    _, (output, logarithm) = check(lambda q, k, v, m: attend(q, k, v, attn_mask=m), [query, key, value, mask])
    assert output[:, :, 3].count_nonzero() == 0 and logarithm[:, :, 3].count_nonzero() == 0
    for special in (math.nan, math.inf, -math.inf):
        marked = query.clone()
        marked[0, 1, 5, 2] = special
        _, (output, _) = check(lambda q, k, v: attend(q, k, v), [marked, key, value])
        assert output[0, 1, 5].isnan().all() and output.isnan().sum() == 32


@pytest.mark.sampled(2)
@pytest.mark.parametrize("queries", [3, 21])
@pytest.mark.parametrize("causal", [False, True])
def test_queries_without_a_score_that_is_a_number(queries: int, causal: bool) -> None:
    """Eager looks past NaN where keys are fewer than a vector has lanes, and gives zeros where all scores are NaN."""
    for keys in (4, 15, 16):
        query, key, value = tensors(1, 2, queries, keys, 32)
        query[0, 0, 0, 3] = query[0, 1, queries - 1, 0] = math.nan
        key[0, 1, keys - 1, 2] = math.nan
        key[0, 0, 0] = -math.inf * query[0, 0, 1].sign()
        function = lambda q, k, v: attend(q, k, v, 0.0, causal)  # noqa: E731 - one expression
        _, results = check(function, [query, key, value])
        for result, eager in zip(results, function(query, key, value), strict=True):
            assert torch.equal(result.isnan(), eager.isnan()), (keys, result, eager)


def test_causal_queries_see_no_later_key() -> None:
    query, key, value = tensors(1, 2, 130, 130, 32)
    function = lambda q, k, v: attend(q, k, v, 0.0, True)  # noqa: E731 - one expression
    _, (before, _) = check(function, [query, key, value])
    key[:, :, 100:] += 5
    value[:, :, 100:] = 1e30
    _, (after, _) = check(function, [query, key, value], interpreted=False)
    assert torch.equal(before[:, :, :100], after[:, :, :100])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("masked", [False, True])
def test_one_compilation_serves_all_sizes(masked: bool) -> None:
    def block(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length = x.shape[:2]
        query, key, value = x.view(batch, length, 3, 3, 32).permute(2, 0, 3, 1, 4).unbind(0)
        output = attend(query, key, value, 0.0, not masked, attn_mask=mask if masked else None)[0]
        return output.transpose(1, 2).reshape(batch, length, 96)

    def inputs(batch: int, length: int) -> list[torch.Tensor]:
        return [values(batch, length, 288), values(batch, 1, length, length, seed=1)]

    region = trace_region(block, inputs(6, 20), dynamic=True)
    compiled = BACKEND.compile(region)
    for batch, length in ((6, 20), (1, 1), (3, 64), (2, 133), (1, 17)):
        given = inputs(batch, length)
        (result,) = compiled.run(arguments(region, given))
        torch.testing.assert_close(result, block(*given), rtol=2e-5, atol=2e-6)


def test_logarithms_serve_the_backward() -> None:
    inputs = tensors(2, 3, 37, 37, 32)
    _, (output, logarithm) = check(lambda q, k, v: attend(q, k, v, 0.0, True), inputs)
    expected = attend(*inputs, 0.0, True)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    grad = values(2, 3, 37, 32, seed=9)
    ours_and_theirs = (backward(grad, *inputs, *made, 0.0, True, scale=0.2) for made in ((output, logarithm), expected))
    for ours, theirs in zip(*ours_and_theirs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_layers_share_one_kernel() -> None:
    def two(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        first = attend(q, k, v)[0]
        return attend(first, k[:, :, :30], v[:, :, :30])[0]

    program, _ = check(two, tensors(2, 3, 37, 50, 32))
    assert names(program) == ["attention", "attention"] and len(program.kernels) == 1
