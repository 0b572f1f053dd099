"""The public functions: ``auto``, ``explain``, ``invalidate``, ``report``.

Place: behind ``mixbackend/__init__.py``. Everything here is documented in the README.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mixbackend.compile.mixture import Mixture, all_mixtures, mixture_of
from mixbackend.compile.saved_caches import take_part_in_saved_caches
from mixbackend.configuration import Config, load_config
from mixbackend.contracts import MixbackendError
from mixbackend.contracts.torch_compat import backward_compiled_at_once, bisecting, join_bisection, tell_of_compilations
from mixbackend.host.debug import PASSES, REGIONS
from mixbackend.host.full_collections import compilation_ends, compilation_starts, full_collections_later
from mixbackend.reporting import Report

_latest: list[weakref.ref[Mixture]] = []
"""What ``auto`` gave last."""


def auto(source: str | Path | Mapping[str, Any] | Config | None = None) -> Mixture:
    """The backend for ``torch.compile``.

    Args:
        source: nothing, the path of a YAML file, a mapping, or a ``Config``. Equal configurations give the same object.

    Raises:
        ConfigurationError: lists everything that is wrong, with file, line and column.
    """
    mixture = mixture_of(source)
    _latest[:] = [weakref.ref(mixture)]
    with full_collections_later():
        # This loads Dynamo, as torch.compile would a moment later, collecting garbage all the while.
        tell_of_compilations(compilation_starts, compilation_ends)
        join_bisection((PASSES, REGIONS))
        take_part_in_saved_caches()
    return mixture


class NamedBackend:
    """What ``backend="mixbackend"`` stands for: the backend of the default configuration, decided at each compilation.

    Torch keeps the first object that it finds under a name. Its bisector puts the name in place of another object of
    ``auto``: the one that was asked for last is meant then.
    """

    __name__ = "mixbackend"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compile a graph; see ``Mixture``."""
        return self._meant()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of how objects are copied and shown: not the other object's
            raise AttributeError(name)
        return getattr(self._meant(), name)

    def __reduce__(self) -> str:
        return "NAMED"

    def _meant(self) -> Mixture:
        asked = _latest[0]() if bisecting() and _latest else None
        return auto() if asked is None else asked


NAMED = NamedBackend()


def invalidate(model: torch.nn.Module) -> None:
    """Say that weights were changed in a way that torch does not tell: constants made of them are made again.

    Needed only after edits through ``.data``, a numpy alias or the like, and on processors only to be sure at once:
    what changes a whole tensor is seen at the next call anyway, and what changes a part of it after about a second of
    use for each hundred megabytes of weights. On GPUs such edits are not seen by themselves.

    Args:
        model: with the parameters and buffers that changed; the module, or what ``torch.compile`` made of it.

    Raises:
        MixbackendError: it is no module.
    """
    from mixbackend.execute.weights import watch

    if not isinstance(model, torch.nn.Module):
        raise MixbackendError(
            what=f"invalidate() takes a torch.nn.Module, not a {type(model).__name__}",
            hint="pass the module whose parameters or buffers were edited",
        )
    watch.invalidate([*model.parameters(), *model.buffers()])


def report() -> Report:
    """What all objects of this process compiled so far."""
    return Report.joined(mixture.report() for mixture in all_mixtures())


def explain(
    model: Callable[..., Any],
    *args: Any,
    config: str | Path | Mapping[str, Any] | Config | None = None,
    **kwargs: Any,
) -> Report:
    """Compile a model as ``auto`` would, run it once, and say what ran where and why; the compiled model is dropped.

    Args:
        model: module or function.
        args, kwargs: its arguments; as in a normal call, gradients are traced if grad mode is on.
        config: see ``auto``.
    """
    return compiled_once(model, args, kwargs, load_config(config)).report(advice=True)


def compiled_once(model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], config: Config) -> Mixture:
    """Compile a model with an object of its own, which can tell what happened, and run it once."""
    mixture = Mixture(config)
    with backward_compiled_at_once():
        compiled = torch.compile(model, backend=mixture)
        compiled(*args, **kwargs)
    return mixture
