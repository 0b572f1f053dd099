"""Samples: functions with inputs, from which claims of a backend are cut.

Place: the ground of certification; vendors write some of their own (``mixbackend certify NAME --samples module:name``).
Input: none. Output: ``Sample``. Equal samples have equal inputs in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from mixbackend.contracts import MixbackendError, Phase


@dataclass(frozen=True)
class Sample:
    """A function that a backend may be asked to run, or parts of it.

    Attributes:
        name: unique among the samples of its source.
        function: plain torch code; returns a tensor or several. It has no effects.
        inputs: tensors.
        dynamic: every size over 1 is symbolic.
        phase: of the graph that it becomes.
        weights: positions of the inputs that are constants of the region.
        whole: whether all its ops together are a claim as well, beside each of them.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    dynamic: bool = False
    phase: Phase = "inference"
    weights: tuple[int, ...] = ()
    whole: bool = False


def load_samples(place: str) -> tuple[Sample, ...]:
    """The samples that ``module:name`` is: an iterable of them, or a function without arguments that gives one.

    Raises:
        MixbackendError: it is nothing of the kind.
    """
    module, _, name = place.partition(":")
    try:
        found = getattr(import_module(module), name)
        samples = tuple(found() if callable(found) else found)
    except (ImportError, AttributeError, TypeError) as error:
        raise MixbackendError(
            what=f"samples cannot be taken from {place!r}: {error}",
            hint="write module:name, where name is a list of mixbackend.certify.samples.Sample, or makes one",
        ) from error
    return checked_samples(samples)


def checked_samples(samples: Iterable[Any]) -> tuple[Sample, ...]:
    """Samples of one source.

    Raises:
        MixbackendError: one is none, or two have one name.
    """
    found = tuple(samples)
    wrong = [type(item).__name__ for item in found if not isinstance(item, Sample)]
    names = [item.name for item in found if isinstance(item, Sample)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if wrong or twice:
        problem = f"{wrong[0]} is no Sample" if wrong else f"several samples are called {', '.join(twice)}"
        raise MixbackendError(what=problem, hint="see mixbackend.certify.samples.Sample")
    return found
