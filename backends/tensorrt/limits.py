"""Limits of building engines, from the environment.

Place: read by the backend (they are part of its fingerprint where they change engines) and by ``building``.
Environment: ``MIXBACKEND_TENSORRT_SECONDS`` that one engine may take to build, ``MIXBACKEND_TENSORRT_BUILDS`` at once,
``MIXBACKEND_TENSORRT_WORKSPACE_MB`` of scratch memory per engine, ``MIXBACKEND_TENSORRT_LEVEL`` of optimisation,
``MIXBACKEND_TENSORRT_REFIT`` whether engines are built to be given their weights later, whatever the release,
``MIXBACKEND_TENSORRT_LEAST_US`` of work that a region needs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from mixbackend.backends.tensorrt.versions import Release


@dataclass(frozen=True, slots=True)
class Limits:
    """See the module's docstring.

    Attributes:
        seconds: until a build is given up.
        builds: at once; they time kernels on the same GPU, so more of them make each other's times worse.
        workspace_mb: scratch memory that the kernels of an engine may use.
        level: 0 (quick to build) to 5 (slow to build, quick to run).
        refit: 1 builds one engine for all weights, which are given to it; 0 builds one with the weights inside for each
            of their values; ``None`` does what is right with the installed release.
        least_us: microseconds of estimated work below which a region is not worth the minute that an engine takes.
    """

    seconds: int = 600
    builds: int = 2
    workspace_mb: int = 8192
    level: int = 3
    refit: int | None = None
    least_us: int = 30


_BOUNDS = {
    "seconds": (1, 86_400),
    "builds": (1, 64),
    "workspace_mb": (1, 1 << 20),
    "level": (0, 5),
    "refit": (0, 1),
    "least_us": (0, 10**6),
}


def limits() -> Limits:
    """The limits as the environment has them now.

    Raises:
        ValueError: a variable holds no number within its bounds; names it.
    """
    found: dict[str, int] = {}
    for name, (low, high) in _BOUNDS.items():
        variable = f"MIXBACKEND_TENSORRT_{name.upper()}"
        text = os.environ.get(variable, "")
        if not text:
            continue
        if not text.isdecimal() or not low <= int(text) <= high:
            raise ValueError(f"{variable}={text!r}, needed a whole number from {low} to {high}")
        found[name] = int(text)
    return Limits(**found)


def why_weights_inside(release: Release) -> str:
    """Why engines are built with their weights inside, in words; empty if they are given their weights later.

    Raises:
        ValueError: as ``limits``.
    """
    wished = limits().refit
    if wished is None:
        return release.why_weights_inside
    return "" if wished else "MIXBACKEND_TENSORRT_REFIT=0"
