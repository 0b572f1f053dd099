"""How far rounding moves what eager returns: the error of float64, of which there is no better reference.

Stochastic arithmetic: eager runs again and again, and every result of an operator that it may have rounded is moved by
one unit in its last place, up or down at random. How far the outputs move is how far off they may be. Values that an
operator only moved or chose, which are among its inputs but for their sign, stay as they are, so that ties stay ties.
Operators that round in many steps inside (sums, statistics) are taken to be right for arguments moved likewise.
What is decided otherwise in fewer than half of the runs (a floor, a comparison) does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
import torch.utils._pytree as pytree

from mixbackend.contracts import Region, op_class_of

_RUNS = 7
_COMPOUND = ("normalization", "softmax", "reduction")


def rounding_noise(region: Region, inputs: Sequence[Any], expected: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """For every output the median distance, element by element, of runs that round otherwise.

    Args:
        expected: what eager returns.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        runs = [_Rounding(region.graph_module, generator).run(*inputs) for _ in range(_RUNS)]
    return [_distance(eager, [run[place] for run in runs]) for place, eager in enumerate(expected)]


def _distance(eager: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
    exact = eager.to(torch.float64)
    distances = torch.stack([(other.to(torch.float64) - exact).abs() for other in others])
    return torch.nan_to_num(distances, nan=0.0, posinf=0.0).median(0).values


class _Rounding(torch.fx.Interpreter):
    """Runs a graph, and rounds every result otherwise."""

    def __init__(self, graph_module: torch.fx.GraphModule, generator: torch.Generator) -> None:
        super().__init__(graph_module)
        self._generator = generator

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super().call_function(target, args, kwargs)
        known = _magnitudes((args, kwargs))
        if op_class_of(str(target)) in _COMPOUND and not all(
            bool(_chosen(item, known).all()) for item in _floats(result)
        ):
            args, kwargs = self._moved((args, kwargs), {})
            result = super().call_function(target, args, kwargs)
        return self._moved(result, known)

    def _moved(self, values: Any, known: dict[torch.dtype, torch.Tensor]) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda tensor: self._moved_tensor(tensor, known), values)

    def _moved_tensor(self, tensor: torch.Tensor, known: dict[torch.dtype, torch.Tensor]) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        up = torch.randint(0, 2, tensor.shape, generator=self._generator) == 1
        step = tensor.abs() * torch.finfo(tensor.dtype).eps
        return torch.where(_chosen(tensor, known), tensor, torch.where(up, tensor + step, tensor - step))


def _floats(values: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(values)
    return [item for item in leaves if isinstance(item, torch.Tensor) and item.is_floating_point()]


def _magnitudes(values: Any) -> dict[torch.dtype, torch.Tensor]:
    """All floating values, without their signs, by type."""
    floats = _floats(values)
    return {
        dtype: torch.cat([item.abs().flatten() for item in floats if item.dtype == dtype])
        for dtype in {item.dtype for item in floats}
    }


def _chosen(tensor: torch.Tensor, known: dict[torch.dtype, torch.Tensor]) -> torch.Tensor:
    """Which elements are among known ones but for their sign."""
    if tensor.dtype not in known:
        return torch.zeros_like(tensor, dtype=torch.bool)
    return torch.isin(tensor.abs(), known[tensor.dtype])
