"""Fake tensors, and tracing apart from the compilation that goes on.

Place: a part of the door; see ``contracts.torch_compat``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.fx

from mixbackend.contracts.torch_compat.result_types import as_eager_gives


def without_dispatch_modes() -> Any:
    """Context in which no fake-tensor or proxy mode is active: real tensors may be touched."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


@contextlib.contextmanager
def results_replaced(replace: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Context in which every new tensor that an operator returns is replaced; views and what is written stay."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map_only

    class Replacing(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if any(item.alias_info is not None for item in function._schema.returns):
                return result
            # Below the mode: what replaces is no operator of the program.
            with without_dispatch_modes():
                return tree_map_only(torch.Tensor, replace, result)

    with Replacing():
        yield


def walk_metadata(node: torch.fx.Node) -> Iterator[tuple[str, Any]]:
    """(path, class) of the modules an fx node ran in, outermost first; forward modules for backward nodes."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    yield from stack.values()


def fake_tensor(
    mode: Any, sizes: Sequence[Any], strides: Sequence[Any], dtype: torch.dtype, device: torch.device, begin: Any = 0
) -> torch.Tensor:
    """A fake tensor of a mode, made without asking torch's dispatcher: a tenth of the time of ``empty_strided``.

    Args:
        begin: where in its storage it begins, in elements.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    form = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
    return FakeTensor(
        mode, form if type(begin) is int and begin == 0 else form.as_strided(sizes, strides, begin), device
    )


@contextlib.contextmanager
def tracing_apart(fake_mode: Any) -> Iterator[None]:
    """Trace or compile as if no other compilation was going on, with this fake mode as the ambient one."""
    from torch._guards import TracingContext, tracing

    with without_dispatch_modes(), tracing(TracingContext(fake_mode)), torch.no_grad():
        yield


@contextlib.contextmanager
def symbolic_kernels(wanted: bool) -> Iterator[None]:
    """Operators on fake values run torch's kernels in Python, as when a model is captured: some of those in C++ read
    symbolic sizes as numbers, and raise."""
    from torch._dispatch.python import enable_python_dispatcher

    with enable_python_dispatcher() if wanted else contextlib.nullcontext():
        yield


def rerun_fake(target: Any, arguments: Any, keywords: Any, like: Any = None) -> Any:
    """Call an operator on fake values in their own mode: which strides and types its result has. Adds no guard.

    Args:
        like: has a fake value; an operator that takes no tensors runs in the mode of this value.

    Raises:
        Exception: the operator refuses the values.
    """
    from torch.utils._pytree import tree_leaves, tree_map_only

    mode = next(value.fake_mode for value in tree_leaves((arguments, keywords, like)) if is_fake(value))
    fake = tree_map_only(
        torch.Tensor, lambda value: value if is_fake(value) else mode.from_tensor(value), (arguments, keywords)
    )
    given, named = fake
    with without_dispatch_modes(), torch.no_grad(), torch._C._DisableAutocast(), guards_suppressed(mode), mode:
        return as_eager_gives(target, given, named, target(*given, **named))


def run_eagerly(target: Any, arguments: Any, keywords: Any) -> Any:
    """Call an operator on real values as eager does, without modes, autocast and gradients of the code that compiles.

    Raises:
        Exception: the operator refuses the values.
    """
    with without_dispatch_modes(), torch.no_grad(), torch._C._DisableAutocast():
        return target(*arguments, **keywords)


def fake_mode_of(values: Iterable[Any]) -> Any:
    """The mode of the first fake tensor among values, which may be several at a place.

    Raises:
        ValueError: there is none.
    """
    from torch.utils._pytree import tree_leaves

    found = (value.fake_mode for item in values for value in tree_leaves(item) if is_fake(value))
    mode = next(found, None)
    if mode is None:
        raise ValueError("there is no fake tensor")
    return mode


def guards_suppressed(mode: Any) -> Any:
    """Context in which nothing that is asked of a fake mode's symbols becomes a guard."""
    return contextlib.nullcontext() if mode.shape_env is None else mode.shape_env.suppress_guards()


@contextlib.contextmanager
def guards_counted() -> Iterator[None]:
    """Context in which what is asked of symbols becomes a guard of theirs, also where an outer context suppresses
    guards: torch suppresses those of all modes of a thread at once."""
    from torch.fx.experimental.symbolic_shapes import TLS

    before = getattr(TLS, "suppress_guards", False)
    TLS.suppress_guards = False
    try:
        yield
    finally:
        TLS.suppress_guards = before


def is_fake(value: object) -> bool:
    """Whether a tensor is fake: it has a shape, but no data."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor)


@contextlib.contextmanager
def outside_compilation() -> Iterator[None]:
    """Run as if no compilation was going on: real tensors stay real, and a new trace shares nothing with it."""
    from torch._guards import tracing

    with without_dispatch_modes(), tracing(None), torch.no_grad():
        yield
