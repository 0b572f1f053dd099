"""The store of a package: artifacts that are read from the file, in front of the ordinary cache.

Place: in the place of the store, the failures and the compile cache of an environment that runs a package.
Input: what is asked by ``execute.compile_cache``. Output: the package's artifacts for backends of which the conditions
agree, under the keys that they were made with; anything else is the ordinary cache's.
Invariants: nothing of the package is written into the ordinary cache, under any key; an artifact that its backend
cannot load is not offered again. What was found right when the package was made counts where backend and device are the
same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import mixbackend.storage.entry as entry
from mixbackend.compile.open_environment import open_environment
from mixbackend.configuration import Config
from mixbackend.contracts import Backend, PackageError, Region
from mixbackend.contracts.graph import accelerator
from mixbackend.execute.compile_cache import CompileCache
from mixbackend.execute.confirmations import Confirmations
from mixbackend.execute.failures import Failures
from mixbackend.execute.region_code import CONFIRMED_BY
from mixbackend.host.debug import Fuel
from mixbackend.package.conditions import Here, as_made
from mixbackend.package.container import PackageFile
from mixbackend.package.model import PackagedBackend
from mixbackend.plan.environment import Environment
from mixbackend.reporting import Event, EventLog
from mixbackend.storage import ArtifactStore, Label, Storage, artifact_key
from mixbackend.storage.entry import UNKNOWN


class _Store(ArtifactStore):
    """The ordinary store behind a package's."""

    package: PackageFile
    members: dict[str, str]
    """Of artifacts that may be loaded, by key; empty once they were discarded."""
    events: EventLog

    def get(self, key: str) -> bytes | None:
        member = self.members.get(key)
        if member is None:
            return super().get(key)
        return _checked(self.package, key, member) if member else None

    def put(self, key: str, content: bytes, label: Label = UNKNOWN) -> bool:
        return key not in self.members and super().put(key, content, label)

    def discard(self, key: str, reason: str) -> None:
        if key not in self.members:
            super().discard(key, reason)
            return
        self.members[key] = ""
        self.events.append(Event("package", "", "", "", f"an artifact is not used: {reason}"))

    def remove(self, key: str) -> bool:
        if key not in self.members:
            return super().remove(key)
        self.members[key] = ""
        return True


def _checked(package: PackageFile, key: str, member: str) -> bytes:
    """The content of an artifact."""
    found = entry.decode(key, package.read(member))
    if isinstance(found, str):
        raise PackageError(f"{package.path}: {member} {found}", hint="make the package anew with mixbackend.export")
    return found.content


class _Storage(Storage):
    """What a configuration keeps, with such a store."""

    package: PackageFile
    members: dict[str, str]
    events: EventLog

    @cached_property
    def store(self) -> ArtifactStore:
        store = _Store.open(self._folder, remote=self._remote, max_gb=self._max_gb, report=self._report)
        assert isinstance(store, _Store)
        store.package, store.members, store.events = self.package, self.members, self.events
        return store


@dataclass(frozen=True)
class _Confirmations(Confirmations):
    """What was found right here, and when the package was made."""

    known: frozenset[str] = field(kw_only=True)

    def count(self, sizes: str) -> int:
        return CONFIRMED_BY if sizes in self.known else super().count(sizes)


class _Failures(Failures):
    """Failures with such confirmations."""

    confirmed: Mapping[tuple[str, str], frozenset[str]]

    def confirmations(self, backend: Backend, region: Region) -> Confirmations | None:
        known = super().confirmations(backend, region)
        sizes = self.confirmed.get((backend.name, region.key))
        if known is None or sizes is None:
            return known
        return _Confirmations(known.storage, known.region, known.backend, known.fingerprint, known=sizes)


class _Cache(CompileCache):
    """A compile cache that asks for a package's artifacts by the keys that they were made with."""

    agreed: Mapping[tuple[str, str], PackagedBackend]

    def artifact_key(self, backend: Backend, region: Region, values: str = "") -> str:
        metas = [item.meta for item in region.inputs] + [item.meta for item in region.outputs]
        made = self.agreed.get((backend.name, accelerator(metas)))
        if made is None:
            return super().artifact_key(backend, region, values)
        key = f"{region.key} with {values}" if values else region.key
        return artifact_key(key, backend.name, made.fingerprint, backend.traits().weights, made.product)


def packaged_environment(config: Config, package: PackageFile, here: Here) -> Environment:
    """An environment in which a package's artifacts are loaded."""
    environment = open_environment(config, found=here.resolution(), kind=_Storage).for_good()
    storage, fingerprints, events = environment.storage, environment.fingerprints, environment.events
    assert isinstance(storage, _Storage)
    agreed = {name for name, _ in here.agreed}
    storage.package, storage.events = package, events
    storage.members = {item.key: item.member for item in package.manifest.artifacts if item.backend in agreed}
    for key, member in storage.members.items():
        _checked(package, key, member)  # what is damaged is an error, and not a region that fails
    failures = _Failures(storage, fingerprints)
    failures.confirmed = _confirmed(package, here)
    cache = _Cache(environment.reference, fingerprints, storage, failures, events, Fuel(environment.debug.fuel))
    cache.agreed = here.agreed
    return replace(environment, failures=failures, compile_cache=cache, owns_weights=True)


def _confirmed(package: PackageFile, here: Here) -> dict[tuple[str, str], frozenset[str]]:
    """Classes of sizes at which regions were found right, by backend and region."""
    same = {name for (name, _), item in here.agreed.items() if as_made(package.manifest.made_with, item, here)}
    found: dict[tuple[str, str], set[str]] = {}
    for item in package.manifest.confirmed:
        if item.backend in same:
            found.setdefault((item.backend, item.region), set()).add(item.sizes)
    return {key: frozenset(sizes) for key, sizes in found.items()}
