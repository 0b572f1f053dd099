"""Ranks: the store that the processes of a job share.

Place: a part of the door; see ``contracts.torch_compat``.
"""

from __future__ import annotations

import torch


def default_store() -> torch.distributed.Store | None:
    """The store of the default process group; ``None`` where there is no such group. Imports nothing."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
