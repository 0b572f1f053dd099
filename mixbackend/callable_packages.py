"""Lets ``mixbackend.backends``, ``mixbackend.calibrate`` and ``mixbackend.certify`` be what the public API says, twice.

Place: called once by ``mixbackend/__init__.py``. ``mixbackend.backends`` is the package of our own backends
(``from mixbackend.backends.eager import EagerBackend``) and the public function that lists every registered backend
(``mixbackend.backends()``); ``mixbackend.calibrate`` the package that measures rates, and the function that does so;
``mixbackend.certify`` the package that holds claims against samples, and the function.
Importing any module of such a package makes Python set it as the attribute, whatever the parent module defines; so the
package itself is made callable. The packages stay free of this: that of backends may import the contract only.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixbackend.certify.certificate import Certificate
    from mixbackend.contracts import Backend
    from mixbackend.registry import BackendInfo


class BackendsPackage(ModuleType):
    """The package ``mixbackend.backends``; calling it is ``mixbackend.registry.backends``."""

    def __call__(self) -> tuple[BackendInfo, ...]:
        """Every registered backend, available or why not; alphabetical, the fallback last. Loads all plug-ins."""
        from mixbackend.registry import backends

        return backends()


class CalibratePackage(ModuleType):
    """The package ``mixbackend.calibrate``; calling it is ``mixbackend.calibrate.on_purpose.calibrate``."""

    def __call__(
        self, device: str = "cpu", *, budget_s: float | None = None, config: Any = None, force: bool = False
    ) -> None:
        """Measure what is not known yet of this machine's rates: takes minutes, on a quiet machine.

        Args:
            device: ``cpu`` or ``cuda``.
            budget_s: seconds for all backends; the next run goes on where this one ends.
            config: as of ``auto``: which backends, which cache folder.
            force: measure although the machine is not quiet.
        """
        from mixbackend.calibrate.on_purpose import calibrate

        calibrate(device, budget_s=budget_s, config=config, force=force)


class CertifyPackage(ModuleType):
    """The package ``mixbackend.certify``; calling it is ``mixbackend.certify.certification.certify``."""

    def __call__(self, backend: str | Backend, **options: Any) -> Certificate:
        """Hold every claim of a backend against eager, in processes that may crash; see ``certification.certify``.

        Args:
            backend: name of a registered one, ``module:class``, or an object.
            options: ``ops``, ``samples``, ``quick``, ``jobs``, ``against``, ``expected`` and others.
        """
        from mixbackend.certify.certification import certify

        return certify(backend, **options)


def make_packages_callable() -> None:
    """Turn the packages into callable ones. Costs microseconds: the packages' own modules are empty."""
    import_module("mixbackend.backends").__class__ = BackendsPackage
    import_module("mixbackend.calibrate").__class__ = CalibratePackage
    import_module("mixbackend.certify").__class__ = CertifyPackage
