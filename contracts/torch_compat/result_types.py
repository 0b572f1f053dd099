"""Result types that torch states wrongly: what eager's kernels return where fake tensors tell something else.

Place: a part of the door; see ``contracts.torch_compat``.
Input: an operator and the values it is called with. Output: the dtypes of its results, by number.
torch's fake tensors and decompositions of normalisations (seen in torch 2.13) give saved statistics on the processor
the type of what is normalised; the kernels keep them in float32 where the parameters are float32 and the rest is
narrower, as under autocast. New running statistics are stated as float32; the kernels keep the type of the old ones.
Losses of two types, and their gradients, are stated in the wider one; kernels give the type of one argument.
Invariants: where torch states the truth, nothing changes; ``tests/contracts/test_result_types.py`` holds every rule
against the kernels themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Normalisation:
    """What is known of the results of an operator that normalises.

    Attributes:
        parameters: names of the arguments whose type statistics may have, the decisive ones first.
        statistics: numbers of the results that are saved statistics.
        running: numbers of the results that are new running statistics, with the argument that they follow.
    """

    parameters: tuple[str, ...]
    statistics: tuple[int, ...] = ()
    running: tuple[tuple[int, str], ...] = ()


_AFFINE = ("weight", "bias")
_BATCH = (*_AFFINE, "running_mean", "running_var")
_SAVED = (1, 2)


def _running(first: int) -> tuple[tuple[int, str], ...]:
    return ((first, "running_mean"), (first + 1, "running_var"))


_NORMALISATIONS: Mapping[Any, _Normalisation] = {
    aten.native_batch_norm.default: _Normalisation(_BATCH, _SAVED),
    aten._native_batch_norm_legit.default: _Normalisation(_BATCH, _SAVED),
    aten._native_batch_norm_legit.no_stats: _Normalisation(_AFFINE, _SAVED),
    aten._native_batch_norm_legit_no_training.default: _Normalisation(_BATCH, _SAVED),
    aten._native_batch_norm_legit_functional.default: _Normalisation(_BATCH, _SAVED, _running(3)),
    aten._batch_norm_with_update.default: _Normalisation(_BATCH, _SAVED),
    aten._batch_norm_with_update_functional.default: _Normalisation(_BATCH, _SAVED, _running(4)),
    aten._batch_norm_no_update.default: _Normalisation(_BATCH, _SAVED),
    aten.native_layer_norm.default: _Normalisation(_AFFINE, _SAVED),
    aten.native_group_norm.default: _Normalisation(_AFFINE, _SAVED),
    aten.native_group_norm_backward.default: _Normalisation(()),
}


_TYPED_LIKE: Mapping[Any, tuple[str, ...]] = {
    aten.huber_loss.default: ("self",),
    # Stated in the widest type up to torch 2.11.
    aten.binary_cross_entropy_with_logits.default: ("target",),
    aten.soft_margin_loss.default: ("self",),
    aten.soft_margin_loss_backward.default: ("self",),
    aten.smooth_l1_loss_backward.default: ("self",),
    aten.mse_loss_backward.default: ("self",),
    aten.mish_backward.default: ("self",),
    aten.threshold_backward.default: ("grad_output", "self"),
}
"""Operators of one result, with the arguments that it has the type of."""

MISSTATED = frozenset(_NORMALISATIONS) | frozenset(_TYPED_LIKE)
"""Operators whose results torch may state wrongly."""


def eager_types(operator: Any, arguments: Any, keywords: Any) -> dict[int, torch.dtype]:
    """Types of an operator's results, by number, as eager's kernels give them; empty for operators without a rule."""
    rule, like = _NORMALISATIONS.get(operator), _TYPED_LIKE.get(operator)
    if rule is None and like is None:
        return {}
    given = _by_name(operator, arguments, keywords)
    if rule is None:
        return {0: functools.reduce(torch.promote_types, (given[name].dtype for name in like or ()))}
    normalised = given["input"]
    types = {0: normalised.dtype}
    types |= {place: given[name].dtype for place, name in rule.running if given.get(name) is not None}
    if normalised.device.type == "cpu":
        types |= dict.fromkeys(rule.statistics, _statistic_type(normalised, rule, given))
    return types


def _statistic_type(normalised: torch.Tensor, rule: _Normalisation, given: Mapping[str, Any]) -> torch.dtype:
    """Kernels for the processor keep statistics in float32 where parameters have another type than the rest."""
    parameter = next((given[name] for name in rule.parameters if given.get(name) is not None), None)
    mixed = parameter is not None and parameter.dtype != normalised.dtype
    return torch.float32 if mixed else normalised.dtype


def _by_name(operator: Any, arguments: Any, keywords: Any) -> dict[str, Any]:
    names = [argument.name for argument in operator._schema.arguments]
    return {**dict(zip(names, arguments, strict=False)), **keywords}


def with_eager_types(operator: Any, arguments: Any, keywords: Any, result: Any) -> Any:
    """A fake result with the types that eager gives; the very result where torch states them rightly."""
    types = eager_types(operator, arguments, keywords)
    return retyped(result, types) if types else result


def retyped(result: Any, types: Mapping[int, torch.dtype]) -> Any:
    """A fake result, one tensor or several, with other types; shapes, strides and devices stay."""
    several = isinstance(result, (tuple, list))
    items = list(result) if several else [result]
    wrong = [
        place
        for place, dtype in types.items()
        if place < len(items) and isinstance(items[place], torch.Tensor) and items[place].dtype != dtype
    ]
    for place in wrong:
        items[place] = _retyped_tensor(items[place], types[place])
    if not wrong:
        return result
    return type(result)(items) if several else items[0]


def _retyped_tensor(value: Any, dtype: torch.dtype) -> torch.Tensor:
    with value.fake_mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=dtype, device=value.device)


def with_eager_decompositions(table: Mapping[Any, Any]) -> dict[Any, Any]:
    """A table of decompositions whose results have the types that eager gives."""
    return {
        operator: _as_eager(operator, decomposition) if operator in MISSTATED else decomposition
        for operator, decomposition in table.items()
    }


def _as_eager(operator: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition whose results have eager's types."""
    if operator in _TYPED_LIKE:
        return lambda *given, **named: decomposition(*given, **named).to(eager_types(operator, given, named)[0])
    return _with_statistics(operator, decomposition)


def _with_statistics(operator: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that rounds statistics as eager does, and not to the type of what is normalised."""
    place = next(place for place, argument in enumerate(operator._schema.arguments) if argument.name == "input")

    def decompose(*arguments: Any, **keywords: Any) -> Any:
        types = eager_types(operator, arguments, keywords)
        statistic = types.get(1)
        if _NORMALISATIONS[operator].statistics and statistic not in (None, types[0]):
            # Everything is computed in the wide type anyway; only so do the statistics keep it.
            arguments, keywords = _widened(arguments, keywords, place, statistic)
        results = decomposition(*arguments, **keywords)
        return tuple(
            item.to(types[number]) if isinstance(item, torch.Tensor) and number in types else item
            for number, item in enumerate(results)
        )

    return decompose


def _widened(arguments: Any, keywords: Any, place: int, dtype: Any) -> tuple[Any, Any]:
    if place >= len(arguments):
        return arguments, {**keywords, "input": keywords["input"].to(dtype)}
    return (*arguments[:place], arguments[place].to(dtype), *arguments[place + 1 :]), keywords
