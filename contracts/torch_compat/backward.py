"""Backward: whether autograd is running one in this thread.

Place: a part of the door; see ``contracts.torch_compat``.
"""

from __future__ import annotations

import torch

_NONE = -1


def graph_task() -> int | None:
    """Number of the backward that made the present call; ``None`` outside of one.

    What a checkpoint computes again is called by a backward, as are hooks of gradients.
    """
    number = torch._C._current_graph_task_id()
    return None if number == _NONE else number


def backward_keeps_graph() -> bool:
    """Whether the backward that made the present call may be run again (``retain_graph``); false outside of one."""
    return torch._C._autograd._get_current_graph_task_keep_graph() if graph_task() is not None else False
