"""Lets four packages (``backends``, ``calibrate``, ``certify``, ``minify``) be what the public API says, twice.

Place: called once by ``mixbackend/__init__.py``. ``mixbackend.backends`` is the package of our own backends
(``from mixbackend.backends.eager import EagerBackend``) and the public function that lists every registered backend
(``mixbackend.backends()``); ``mixbackend.calibrate`` the package that measures rates, and the function that does so;
``mixbackend.certify`` the package that holds claims against samples, and the function; ``mixbackend.minify`` the
package that makes failing regions small, and the function.
Importing any module of such a package makes Python set it as the attribute, whatever the parent module defines; so the
package itself is made callable. The packages stay free of this: that of backends may import the contract only.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mixbackend.certify.certificate import Certificate
    from mixbackend.contracts import Backend
    from mixbackend.minify.result import Minified
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


class MinifyPackage(ModuleType):
    """The package ``mixbackend.minify``; calling it is ``mixbackend.minify.minification.minify``."""

    def __call__(self, model: Callable[..., Any] | str | Path, *args: Any, **options: Any) -> Minified:
        """Find the region that a backend fails on, and make it small; see ``minification.minify``.

        Args:
            model: module or function, with its arguments; or a folder that ``MIXBACKEND_DUMP`` wrote.
            args: of the model.
            options: ``config``, ``timeout_s``, ``limit_s``, ``slow``, ``progress``; others are the model's.
        """
        from mixbackend.minify.minification import minify

        return minify(model, *args, **options)


def make_packages_callable() -> None:
    """Turn the packages into callable ones. Costs microseconds: the packages' own modules are empty."""
    import_module("mixbackend.backends").__class__ = BackendsPackage
    import_module("mixbackend.calibrate").__class__ = CalibratePackage
    import_module("mixbackend.certify").__class__ = CertifyPackage
    import_module("mixbackend.minify").__class__ = MinifyPackage
