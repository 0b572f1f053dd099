"""Dynamo's own registry of backends: functions of a graph and its inputs, by name.

Place: a part of the door; see ``contracts.torch_compat``. Dynamo and what it registers are loaded when first asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_HOMES = "torch._dynamo.backends."


def dynamo_backend_names() -> list[str]:
    """Names that ``torch.compile(backend=...)`` takes here, those for debugging included."""
    import torch._dynamo

    return list(torch._dynamo.list_backends(None))


def dynamo_backend(name: str) -> Callable[..., Any]:
    """The function that is registered under a name; its package is imported.

    Raises:
        Exception: none is, or whatever its package raises on import.
    """
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend(name)


def is_dynamos_own(function: object) -> bool:
    """Whether a backend is one that Dynamo brings along, by whatever name: it is as it is for a version of torch."""
    homes = [module for name, module in list(sys.modules.items()) if name.startswith(_HOMES)]
    return any(value is function for module in homes for value in list(vars(module).values()))
