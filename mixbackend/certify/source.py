"""Where a backend comes from, so that other processes find it too: an entry point, an import, or an object.

Place: below the processes of certification. Input: what the user named or gave. Output: a ``Source`` that is plain
data, and the backend that it stands for.
"""

from __future__ import annotations

import base64
import inspect
import pickle
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from mixbackend import registry
from mixbackend.contracts import (
    Backend,
    BackendUnavailableError,
    MixbackendError,
    check_backend,
    check_contract_version,
)
from mixbackend.contracts.asked import AskedBackend, ask, asked_availability


@dataclass(frozen=True, slots=True)
class Source:
    """A backend as another process can find it.

    Attributes:
        way: ``name`` of a registered one, ``import`` of ``module:name``, ``pickle`` of an object.
        text: the name, the place, or the object in base 64.
    """

    way: Literal["name", "import", "pickle"]
    text: str

    def load(self) -> AskedBackend:
        """The backend.

        Raises:
            MixbackendError: it is none, cannot be used here, or fails when it is asked about itself.
        """
        if self.way == "pickle":
            return asked(pickle.loads(base64.b64decode(self.text)))
        if self.way == "import":
            return asked(_imported(self.text))
        # A required backend that cannot be used is an error that says why.
        backends = registry.resolve((self.text,), (self.text,))
        return next(backend for backend in backends if backend.name == self.text)


def source_of(backend: str | Backend) -> Source | None:
    """How another process finds a backend; ``None`` where none can: an object that cannot be pickled."""
    if isinstance(backend, str):
        return Source("import" if ":" in backend else "name", backend)
    plugin = backend.plugin if isinstance(backend, AskedBackend) else backend
    if type(plugin).__module__ == "__main__":
        return None
    try:
        text = pickle.dumps(plugin)
        pickle.loads(text)
    except Exception:  # whatever an object says that is asked to be carried
        return None
    return Source("pickle", base64.b64encode(text).decode())


def asked(candidate: object) -> AskedBackend:
    """A backend that was not registered, asked about itself.

    Raises:
        MixbackendError: see ``Source.load``.
    """
    made = candidate() if inspect.isclass(candidate) else candidate
    if isinstance(made, AskedBackend):
        return made
    backend = check_backend(made)
    check_contract_version(backend.name, backend.contract_version)
    availability = asked_availability(backend)
    if not availability.available:
        raise BackendUnavailableError(
            what=f"backend {backend.name!r} cannot be used here: {availability.reason}",
            hint="certify it where it can be used",
        )
    return ask(backend, availability)


def _imported(place: str) -> object:
    module, _, name = place.partition(":")
    try:
        found: object = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise MixbackendError(
            what=f"no backend at {place!r}: {error}", hint="name a registered backend, or module:class"
        ) from error
    return found() if callable(found) and not isinstance(found, Backend) else found
