"""Every operator that eager runs, seen or changed by us; Dynamo as fuzzing wants it.

Place: a part of the door; see ``contracts.torch_compat``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class EveryOperator(TorchDispatchMode):
    """While it is entered, ``after(operator, results)`` is called with what each operator computed.

    Args:
        after: is given the tensors that are new or were written, not those that are views; it may write into them.
    """

    def __init__(self, after: Callable[[Any, list[torch.Tensor]], None]) -> None:
        super().__init__()
        self._after = after

    def computed(self, operator: Any, arguments: Any, keywords: Any) -> Any:
        """What an operator computes; a subclass may compute it otherwise."""
        return operator(*arguments, **keywords)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = self.computed(func, args, kwargs or {})
        found = result if isinstance(result, (tuple, list)) else (result,)
        told = [item.alias_info for item in func._schema.returns]
        if len(told) == len(found):
            own = [item for item, alias in zip(found, told, strict=True) if alias is None or alias.is_write]
            self._after(func, [item for item in own if isinstance(item, torch.Tensor)])
        return result


@contextlib.contextmanager
def dynamo_anew(scalars: bool, versions: int) -> Iterator[None]:
    """Nothing compiled is known.

    Args:
        scalars: whether numbers that are read from tensors stay within graphs.
        versions: so many of one function may be compiled.
    """
    torch.compiler.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=scalars, recompile_limit=versions):
        yield
