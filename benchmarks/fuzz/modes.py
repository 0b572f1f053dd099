"""What watches eager's operators: random numbers are kept and given again, results are shaken by a rounding, gradients
of two minds are computed in one loop.

Place: used by ``execution``. Random numbers of float64 are not those of float32: the reference gets what eager drew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mixbackend.contracts.torch_compat import EveryOperator
from mixbackend.execute.eager_loops import OF_TWO_MINDS, Loop, looped

_MOVES = frozenset(
    """
    clone copy_ cat stack gather index select slice where relu abs neg maximum minimum amax amin max min expand repeat
    flip roll zeros_like ones_like full full_like zeros ones empty empty_like new_zeros index_select masked_fill sort
    topk
    constant_pad_nd threshold_backward embedding scatter clamp clamp_min clamp_max arange detach fill_ zero_ sign floor
    ceil round trunc neg_ relu_ masked_fill_ index_put select_backward slice_backward tril triu new_empty new_ones
    new_full scalar_tensor sgn isnan empty_strided new_empty_strided lift_fresh diagonal_scatter slice_scatter
    """.split()
)


class RandomNumbers(EveryOperator):
    """Keep what random operators draw, or give again what was kept.

    Args:
        kept: of another run; nothing to keep them.
    """

    def __init__(self, kept: Sequence[torch.Tensor] | None = None) -> None:
        super().__init__(self._drawn)
        self._given = list(kept) if kept is not None else None
        self.kept: list[torch.Tensor] = []

    def _drawn(self, operator: Any, results: list[torch.Tensor]) -> None:
        if torch.Tag.nondeterministic_seeded not in operator.tags:
            return
        for item in results:
            if self._given is None:
                self.kept.append(item.detach().clone())
            elif self._given and tuple(self._given[0].shape) == tuple(item.shape):
                item.copy_(self._given.pop(0))


class Shaken(EveryOperator):
    """Every result of arithmetic is off by up to a rounding: how far results move then is what rounding alone does.

    Args:
        seed: of the roundings.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(self._shake)
        self._generator = torch.Generator().manual_seed(seed)

    def _shake(self, operator: Any, results: list[torch.Tensor]) -> None:
        if operator.overloadpacket.__name__ in _MOVES:
            return
        for item in results:
            if item.numel() and item.dtype.is_floating_point:
                drawn = torch.rand(item.shape, generator=self._generator, dtype=torch.float64) * 2 - 1
                item.copy_((item.double() * (1 + drawn * torch.finfo(item.dtype).eps)).to(item.dtype))


class InLoop(EveryOperator):
    """Gradients that eager computes otherwise at other places in memory are computed in one of its loops."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(lambda operator, results: None)
        self._loop = loop

    def computed(self, operator: Any, arguments: Any, keywords: Any) -> Any:
        """What an operator computes."""
        if operator in OF_TWO_MINDS:
            return looped(operator, self._loop, *arguments, **keywords)
        return super().computed(operator, arguments, keywords)
