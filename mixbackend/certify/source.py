"""Where a backend comes from, so that other processes find it too: an entry point, an import, or an object.

Place: below the processes of certification. Input: what the user named or gave. Output: a ``Source`` that is plain
data, and the backend that it stands for.
Invariants: nothing is unpickled. An object travels as the place of its class and its attributes in JSON; one with
attributes that JSON does not give back as they are has no source.
"""

from __future__ import annotations

import copyreg
import inspect
import json
from dataclasses import dataclass
from importlib import import_module
from pydoc import locate
from typing import Any, Literal

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
        way: ``name`` of a registered one, ``import`` of ``module:name``, ``object`` of a class at ``module:class``.
        text: the name, or the place.
        state: attributes of an object, as JSON.
    """

    way: Literal["name", "import", "object"]
    text: str
    state: str = "{}"

    def load(self) -> AskedBackend:
        """The backend.

        Raises:
            MixbackendError: it is none, cannot be used here, or fails when it is asked about itself.
        """
        if self.way == "object":
            made = object.__new__(_class_at(self.text))
            vars(made).update(json.loads(self.state))
            return asked(made)
        if self.way == "import":
            return asked(_imported(self.text))
        # A required backend that cannot be used is an error that says why.
        backends = registry.resolve((self.text,), (self.text,))
        return next(backend for backend in backends if backend.name == self.text)


def source_of(backend: str | Backend) -> Source | None:
    """How another process finds a backend; ``None`` where none can: see the module's invariants."""
    if isinstance(backend, str):
        return Source("import" if ":" in backend else "name", backend)
    plugin = backend.plugin if isinstance(backend, AskedBackend) else backend
    kind = type(plugin)
    place = f"{kind.__module__}:{kind.__qualname__}"
    state = _plain_state(plugin)
    if kind.__module__ == "__main__" or state is None or _class_at(place) is not kind:
        return None
    return Source("object", place, state)


def _plain_state(plugin: object) -> str | None:
    """Attributes of an object as JSON, if they are all that there is to it."""
    try:
        # How copies of the object are made, as it says itself.
        make, given, state, *further = tuple[Any, ...](plugin.__reduce_ex__(2))
        known = state or {}
        text = json.dumps(known)
        plain = make is copyreg.__newobj__ and given == (type(plugin),) and not any(further)  # type: ignore[attr-defined]
        return text if plain and json.loads(text) == known else None
    except Exception:  # whatever an object says that is asked to be copied
        return None


def _class_at(place: str) -> Any:
    return locate(place.replace(":", "."))


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
