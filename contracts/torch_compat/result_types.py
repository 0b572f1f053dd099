"""Result types that torch states wrongly: what eager's kernels return where fake tensors tell something else.

Place: a part of the door, above ``result_strides``; see ``contracts.torch_compat``.
Input: an operator and the values it is called with. Output: the dtypes of its results, by number; results that are
stated as eager gives them, strides included.
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
from types import MappingProxyType
from typing import Any

import torch

from mixbackend.contracts.torch_compat.result_strides import MISLAID, eager_strides

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Normalisation:
    """What is known of the results of an operator that normalises.

    Attributes:
        parameters: names of the arguments that statistics may take their type from, the decisive ones first.
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
"""Operators with results that torch may state wrongly."""


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


def as_eager_gives(operator: Any, arguments: Any, keywords: Any, result: Any) -> Any:
    """A fake result with the types and strides that eager gives; the very result where torch states them rightly."""
    types = eager_types(operator, arguments, keywords)
    result = restated(result, types) if types else result
    if operator not in MISLAID:
        return result
    items = result if isinstance(result, (tuple, list)) else (result,)
    return restated(result, {}, eager_strides(operator, _by_name(operator, arguments, keywords), items))


def restated(
    result: Any, types: Mapping[int, torch.dtype], strides: Mapping[int, tuple[Any, ...]] = MappingProxyType({})
) -> Any:
    """A fake result, one tensor or several, with other types and strides by number; shapes and devices stay."""
    several = isinstance(result, (tuple, list))
    items = list(result) if several else [result]
    changed = False
    for place, item in enumerate(items):
        if not isinstance(item, torch.Tensor):
            continue
        form = types.get(place, item.dtype), strides.get(place, item.stride())
        if form[0] != item.dtype or not _lies_so(item, form[1]):
            items[place], changed = _restated_tensor(item, *form), True
    if not changed:
        return result
    return type(result)(items) if several else items[0]


def _lies_so(value: torch.Tensor, strides: tuple[Any, ...]) -> bool:
    """Whether strides are a tensor's own where they mean something; nothing is guarded."""
    if all(isinstance(size, int) for size in value.shape) and not value.numel():
        return True
    triples = zip(value.shape, value.stride(), strides, strict=True)
    return all((isinstance(size, int) and size == 1) or _equal(own, other) for size, own, other in triples)


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, int) or isinstance(right, int):
        return isinstance(left, int) and isinstance(right, int) and left == right
    return bool(left.node.expr == right.node.expr)


def _restated_tensor(value: Any, dtype: torch.dtype, strides: tuple[Any, ...]) -> torch.Tensor:
    with value.fake_mode:
        return torch.empty_strided(value.shape, strides, dtype=dtype, device=value.device)


def with_eager_decompositions(table: Mapping[Any, Any]) -> dict[Any, Any]:
    """A table of decompositions with results of the types that eager gives."""
    return {
        operator: _as_eager(operator, decomposition) if operator in MISSTATED else decomposition
        for operator, decomposition in table.items()
    }


def _as_eager(operator: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition with results of eager's types."""
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
