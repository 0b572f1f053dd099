"""Abandoned weights: what was made of them goes after a full collection of garbage.

Place: ``compile.executable`` enters itself here. Torch may keep a graph long after its model is gone. A finaliser of a
weight would be told at once, but a tensor with weak references of Python cannot be swapped
(``torch.utils.swap_tensors``).
Invariants: takes no lock: it may come in the middle of anything.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

_FULL_COLLECTION = 2


class MadeOfWeights(Protocol):
    """Holds what was made of weights."""

    def drop_abandoned(self) -> None:
        """Let go of what was made of weights that nothing else holds any more."""
        ...


_owners: weakref.WeakSet[MadeOfWeights] = weakref.WeakSet()


def drop_after_collections(owner: MadeOfWeights) -> None:
    """Ask an object to let go after every full collection, as long as it lives."""
    _owners.add(owner)


def _drop_abandoned(phase: str, info: Mapping[str, Any]) -> None:
    if phase == "stop" and info["generation"] >= _FULL_COLLECTION:
        for owner in list(_owners):
            owner.drop_abandoned()


gc.callbacks.append(_drop_abandoned)
