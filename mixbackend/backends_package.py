"""Lets ``mixbackend.backends`` be what the public API says it is, twice.

Place: called once by ``mixbackend/__init__.py``. ``mixbackend.backends`` is the package of our own backends
(``from mixbackend.backends.eager import EagerBackend``) and the public function that lists every registered backend
(``mixbackend.backends()``). Importing any module of the package makes Python set it as the attribute, whatever the
parent module defines; so the package itself is made callable. The package stays free of this: it may import the
contract only.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mixbackend.registry import BackendInfo


class BackendsPackage(ModuleType):
    """The package ``mixbackend.backends``; calling it is ``mixbackend.registry.backends``."""

    def __call__(self) -> tuple[BackendInfo, ...]:
        """Every registered backend, available or why not; alphabetical, the fallback last. Loads all plug-ins."""
        from mixbackend.registry import backends

        return backends()


def make_backends_callable() -> None:
    """Turn the package into a ``BackendsPackage``. Costs microseconds: the package's own module is empty."""
    import_module("mixbackend.backends").__class__ = BackendsPackage
