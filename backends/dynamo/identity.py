"""Identity of a foreign function: what its results may be kept under.

Place: part of the fingerprint of ``DynamoBackend``. Input: a callable. Output: an ``Identity``.
Invariants: two processes give equal text only to what both import from one place, in one version of its distribution;
anything else (a lambda, a closure, an object with values of its own, what ``__main__`` defines) has text that no other
process gives. Sources that are no installed distribution are looked at by the registry, see ``plug_in_source``.
"""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version

from mixbackend.contracts.torch_compat import is_dynamos_own

_THIS_PROCESS = uuid.uuid4().hex[:16]


@dataclass(frozen=True, slots=True)
class Identity:
    """Where a callable comes from.

    Attributes:
        module: that defines it, or its class.
        name: of the callable inside, or of its class.
        local: whether no other process can have the same.
    """

    module: str
    name: str
    local: bool

    @property
    def text(self) -> str:
        """Equal where it is the same in the same version."""
        place = f"{self.module}.{self.name} of {distribution_of(self.module) or 'no distribution'}"
        return f"{place} in process {_THIS_PROCESS}" if self.local else place


def identity_of(function: object) -> Identity:
    """Where a callable comes from."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str):
        return Identity(module, name, module == "__main__" or _found(module, name) is not function)
    kind = type(function)
    return Identity(kind.__module__, kind.__qualname__, not is_dynamos_own(function))


@cache
def distribution_of(module: str) -> str:
    """Name and version of the distribution that a module is of; ``""`` if it is of none."""
    package = module.partition(".")[0]
    names = [package, *packages_distributions().get(package, ())]
    for name in names:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return ""


def _found(module: str, name: str) -> object:
    """What stands under this name, as another process would find it; ``None`` if nothing does."""
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
