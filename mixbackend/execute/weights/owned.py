"""Owned weights: tensors that change only by passing others.

Place: in the place of ``watch.WeightWatch`` where a package's program brings its own weights.
Input: the weights of a call. Output: whether a later call comes with these very tensors.
Invariants: needs no native code. What is written into their memory is not seen: the owner does not do that.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_, itemgetter
from typing import Any

import torch


class OwnedWeights:
    """Knows one tuple of weights.

    Args:
        weights: tensors as they are passed.
        places: theirs in the list of a call's arguments.
    """

    abandoned = False
    """Whether nothing else holds them: their owner says so by letting go of all that was made of them."""

    def __init__(self, weights: Sequence[torch.Tensor], places: Sequence[int]) -> None:
        self.tensors = tuple(weights)
        self._of = itemgetter(*places) if len(places) > 1 else lambda given: [given[place] for place in places]

    def unchanged(self, arguments: list[Any]) -> bool:
        """Whether a call comes with its very tensors."""
        return all(map(is_, self._of(arguments), self.tensors))

    def change(self) -> str:
        """What changed: nothing that could be seen."""
        return ""

    def settle(self) -> None:
        """Constants and bound code exist now."""
