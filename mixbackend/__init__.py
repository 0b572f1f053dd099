"""mixbackend: torch.compile with a mixture of backends.

    model = torch.compile(model, backend=mixbackend.auto())

Importing this package imports neither torch nor a backend: names are loaded at first use, because importing
``mixbackend.contracts`` runs this file first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mixbackend.host.full_collections import full_collections_later
from mixbackend.host.version import VERSION

if TYPE_CHECKING:
    from mixbackend.api import auto, explain, invalidate, report
    from mixbackend.backends.dynamo import from_dynamo
    from mixbackend.configuration import Config
    from mixbackend.contracts.errors import MixbackendError
    from mixbackend.package.exporting import export
    from mixbackend.package.loading import load
    from mixbackend.registry import register_backend
    from mixbackend.reporting import Report

__version__ = VERSION

_HOMES = {
    "auto": "mixbackend.api",
    "explain": "mixbackend.api",
    "invalidate": "mixbackend.api",
    "report": "mixbackend.api",
    "export": "mixbackend.package.exporting",
    "load": "mixbackend.package.loading",
    "from_dynamo": "mixbackend.backends.dynamo",
    "register_backend": "mixbackend.registry",
    "Config": "mixbackend.configuration",
    "Report": "mixbackend.reporting",
    "MixbackendError": "mixbackend.contracts.errors",
}

__all__ = [
    "Config",
    "MixbackendError",
    "Report",
    "auto",
    "explain",
    "export",
    "from_dynamo",
    "invalidate",
    "load",
    "register_backend",
    "report",
]


def __getattr__(name: str) -> Any:
    if name == "backend":
        # The object behind torch.compile(backend="mixbackend").
        with full_collections_later():
            return import_module("mixbackend.api").NAMED
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mixbackend' has no attribute {name!r}")
    with full_collections_later():
        return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "backends", "calibrate", "certify", "minify"])


def _make_packages_callable() -> None:
    from mixbackend.callable_packages import make_packages_callable

    make_packages_callable()


_make_packages_callable()
