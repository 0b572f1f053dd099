"""Types of results that torch states wrongly: each rule against eager's kernels, fake values and decompositions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map_only

from mixbackend.contracts.describe_op import as_tuple
from mixbackend.contracts.torch_compat import (
    MISSTATED,
    decomposition_table,
    eager_types,
    fresh_fake_mode,
    rerun_fake,
    restated,
    tracing_apart,
)

aten = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)


def image(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(2, 4, 5, 5).to(dtype)


def batch_norm(dtype: torch.dtype, parameters: torch.dtype, affine: bool, *rest: Any) -> tuple[Any, ...]:
    weight, bias, mean, spread = (torch.rand(4).to(parameters) for _ in range(4))
    return (image(dtype), *((weight, bias) if affine else (None, None)), mean, spread, *rest)


def calls(dtype: torch.dtype, parameters: torch.dtype, affine: bool) -> dict[Any, tuple[Any, ...]]:
    """Arguments for each operator, with and without weights."""
    weights = tuple(torch.rand(4).to(parameters) for _ in range(2)) if affine else (None, None)
    norm = lambda *rest: batch_norm(dtype, parameters, affine, *rest)  # noqa: E731 - one expression
    # torch cannot trace the newer operators without weights.
    weighted = lambda *rest: batch_norm(dtype, parameters, True, *rest)  # noqa: E731 - one expression
    statistics = dtype if not affine else parameters
    saved = tuple(torch.rand(2, 2).to(statistics) for _ in range(2))
    pair = (torch.rand(3).to(dtype), torch.rand(3).to(parameters))
    gradient = torch.rand(3).to(parameters if affine else dtype)
    return {
        aten.huber_loss.default: pair,
        aten.binary_cross_entropy_with_logits.default: (*pair, None, gradient),
        aten.soft_margin_loss.default: pair,
        aten.soft_margin_loss_backward.default: (gradient, *pair, 0),
        aten.smooth_l1_loss_backward.default: (gradient, *pair, 0, 1.0),
        aten.mse_loss_backward.default: (gradient, *pair, 0),
        aten.mish_backward.default: (gradient, pair[0]),
        aten.threshold_backward.default: (gradient, pair[0], 0),
        aten.native_batch_norm.default: norm(True, 0.1, 1e-5),
        aten._native_batch_norm_legit.default: norm(True, 0.1, 1e-5),
        aten._native_batch_norm_legit.no_stats: (image(dtype), *weights, True, 0.1, 1e-5),
        aten._native_batch_norm_legit_no_training.default: norm(0.1, 1e-5),
        aten._native_batch_norm_legit_functional.default: norm(True, 0.1, 1e-5),
        aten._batch_norm_with_update.default: weighted(0.1, 1e-5),
        aten._batch_norm_with_update_functional.default: weighted(0.1, 1e-5),
        aten._batch_norm_no_update.default: weighted(0.1, 1e-5),
        aten.native_layer_norm.default: (torch.randn(3, 6, 4).to(dtype), [4], *weights, 1e-5),
        aten.native_group_norm.default: (image(dtype), *weights, 2, 4, 25, 2, 1e-5),
        aten.native_group_norm_backward.default: (
            *(image(dtype), image(dtype), *saved, weights[0]),
            *(2, 4, 25, 2, [True, affine, affine]),
        ),
    }


def types_of(result: Any) -> list[torch.dtype | None]:
    return [item.dtype if isinstance(item, torch.Tensor) else None for item in as_tuple(result)]


def faked(mode: Any, arguments: Any) -> Any:
    return tree_map_only(torch.Tensor, mode.from_tensor, arguments)


@pytest.mark.sampled(14)
@pytest.mark.parametrize("affine", [True, False], ids=["weights", "bare"])
@pytest.mark.parametrize("parameters", [torch.float32, None], ids=["mixed", "same"])
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("operator", sorted(MISSTATED, key=str), ids=str)
def test_types_are_those_of_the_kernels(operator, dtype, parameters, affine):
    arguments = calls(dtype, parameters or dtype, affine)[operator]
    real = types_of(operator(*arguments))
    mode = fresh_fake_mode()
    given = faked(mode, arguments)
    assert eager_types(operator, given, {}).items() <= dict(enumerate(real)).items()
    assert types_of(rerun_fake(operator, given, {})) == [*real]
    for level in ("inductor", "prims"):
        with tracing_apart(mode), mode:
            assert types_of(decomposition_table(level)[operator](*given)) == real


def test_every_operator_with_a_rule_is_sampled():
    assert set(calls(torch.bfloat16, torch.float32, True)) == MISSTATED


def test_a_decomposition_keeps_statistics_in_their_precision():
    arguments = calls(torch.bfloat16, torch.float32, True)[aten.native_layer_norm.default]
    for kernel, decomposed in zip(
        aten.native_layer_norm.default(*arguments),
        decomposition_table("inductor")[aten.native_layer_norm.default](*arguments),
        strict=True,
    ):
        torch.testing.assert_close(decomposed, kernel)


def test_values_may_be_named():
    value, weight = torch.randn(3, 4, dtype=torch.bfloat16), torch.ones(4)
    named = {"input": value, "normalized_shape": [4], "weight": weight, "bias": None, "eps": 1e-5}
    assert eager_types(aten.native_layer_norm.default, (), named)[1] is torch.float32
    results = decomposition_table("inductor")[aten.native_layer_norm.default](**named)
    assert types_of(results) == [torch.bfloat16, torch.float32, torch.float32]


def test_statistics_on_other_devices_are_stated_rightly():
    value = torch.empty(2, 4, 5, 5, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(4, device="meta")
    assert eager_types(aten.native_group_norm.default, (value, weight, weight, 2, 4, 25, 2, 1e-5), {}) == {
        0: torch.bfloat16
    }


def test_restated_leaves_what_is_right():
    with fresh_fake_mode():
        pair = (torch.empty(3, 4), torch.empty_strided((4, 2), (1, 4), dtype=torch.bfloat16))
    assert restated(pair, {0: torch.float32, 7: torch.float64}) is pair
    first, second = restated(pair, {1: torch.float32})
    assert first is pair[0]
    assert (second.dtype, tuple(second.shape), second.stride()) == (torch.float32, (4, 2), (1, 4))


def test_other_operators_have_no_rule():
    assert eager_types(aten.add.Tensor, (torch.ones(2), torch.ones(2)), {}) == {}
