"""Conditions: which backends of a package can be used here, which artifacts may be loaded, what is other than it was.

Place: first step of ``loading``. Input: a manifest, the kits of backends, what the caller allows. Output: ``Here``.
A backend that loads its own artifacts under the same conditions (``Backend.loading``) loads the package's. One that
does not, or is not here, is asked whether it can load them with the kit of the package. One that is here and can do
neither compiles regions anew. All others are missing: their regions go elsewhere.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from mixbackend import registry
from mixbackend.contracts import CONTRACT_VERSION, Backend, MixbackendError
from mixbackend.contracts.asked import AskedBackend, ask
from mixbackend.host.devices import device_name
from mixbackend.host.version import VERSION
from mixbackend.locking.differences import Difference
from mixbackend.package.model import MadeWith, Manifest, PackagedBackend


@dataclass
class Here:
    """See the module's docstring.

    Attributes:
        backends: that can be used, by name.
        loads_only: names of those that compile nothing.
        agreed: those with artifacts that may be loaded, by name and kind of device.
        missing: why others cannot be used, by name.
        differences: all that is not as it was.
    """

    backends: dict[str, AskedBackend] = field(default_factory=dict)
    loads_only: set[str] = field(default_factory=set)
    agreed: dict[tuple[str, str], PackagedBackend] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)

    def resolution(self) -> registry.Resolution:
        """The backends, as an environment takes them; the reference last."""
        found = dict(self.backends)
        reference = registry.resolve((registry.FALLBACK,))[0]
        found.pop(reference.name, None)
        return registry.Resolution((*found.values(), reference), ())


def conditions_here(manifest: Manifest, kit: Callable[[str], bytes], native: str) -> Here:
    """See the module's docstring.

    Args:
        manifest: of the package.
        kit: reads a kit by the name of its member.
        native: why native code of the package is not loaded; empty if it is.
    """
    here = Here()
    made = manifest.made_with
    pairs = [
        ("mixbackend", made.mixbackend, VERSION),
        ("contract", made.contract, CONTRACT_VERSION),
        ("torch", made.torch, str(torch.__version__)),
        ("machine", made.machine, f"{platform.system()} {platform.machine()}"),
    ]
    here.differences += [Difference("package", what, *sides) for what, *sides in pairs if sides[0] != sides[1]]
    for item in manifest.backends:
        _add(here, item, kit, native if item.native else "")
    if here.missing:
        for name in manifest.runners_up:
            if name not in here.backends and name not in here.missing:
                found, _ = _ordinary(name)
                here.backends.update({} if found is None else {name: found})
    return here


def _add(here: Here, item: PackagedBackend, kit: Callable[[str], bytes], forbidden: str) -> None:
    """One backend on one kind of device."""
    ordinary, reason = _ordinary(item.name)
    agrees = ordinary is not None and ordinary.loading(item.device) == item.loading
    chosen, loads_only = ordinary, False
    if not agrees and item.kit and not forbidden and item.name not in here.backends:
        chosen, why = _with_kit(item, kit)
        agrees = chosen is not None
        reason, loads_only = (reason or why), chosen is not None
        chosen = chosen or ordinary
    if chosen is None:
        here.missing.setdefault(item.name, reason)
        here.differences.append(Difference("package", f"backend {item.name}", item.version or "used", reason))
        return
    here.backends.setdefault(item.name, chosen)
    if loads_only:
        here.loads_only.add(item.name)
    if agrees and not forbidden:
        here.agreed[item.name, item.device] = item
        _add_differences(here, item, chosen, loads_only)
        return
    here_says = forbidden or chosen.loading(item.device)
    here.differences.append(Difference("package", f"artifacts of {item.name}", item.loading, here_says))


def _add_differences(here: Here, item: PackagedBackend, chosen: AskedBackend, loads_only: bool) -> None:
    version, product = chosen.availability().version, device_name(item.device)
    pairs = [(f"backend {item.name}", item.version, version), (f"device of {item.name}", item.product, product)]
    if not loads_only:
        pairs.append((f"fingerprint of {item.name}", item.fingerprint, chosen.fingerprint()))
    here.differences += [Difference("package", what, *sides) for what, *sides in pairs if sides[0] != sides[1]]


def _ordinary(name: str) -> tuple[AskedBackend | None, str]:
    """A backend as it is here; or why it cannot be used."""
    try:
        backend, info = registry.asked(name)
    except MixbackendError as error:
        return None, error.what
    return backend, info.reason


def _with_kit(item: PackagedBackend, kit: Callable[[str], bytes]) -> tuple[AskedBackend | None, str]:
    """A backend that loads what the package holds of it; or why it cannot."""
    content = kit(item.kit)
    try:
        backend: Backend = registry.get(item.name).with_kit(content)
        answer = backend.availability()
        if not answer.available:
            return None, answer.reason
        asked = ask(backend, answer)
    except Exception as error:  # whatever a plug-in raises, its regions go elsewhere
        return None, f"{type(error).__name__}: {error}"
    if asked.loading(item.device) != item.loading:
        return None, f"it loads {asked.loading(item.device)}, the package holds {item.loading}"
    return asked, ""


def as_made(made: MadeWith, item: PackagedBackend, here: Here) -> bool:
    """Whether a backend is what it was, on the device that it was on: what was found right there holds here.

    One that only loads has a fingerprint of its own: it runs the very code, with the same torch and as many threads.
    """
    backend = here.backends.get(item.name)
    if backend is None or device_name(item.device) != item.product:
        return False
    if item.name in here.loads_only:
        return (made.torch, made.threads) == (str(torch.__version__), torch.get_num_threads())
    return backend.fingerprint() == item.fingerprint
