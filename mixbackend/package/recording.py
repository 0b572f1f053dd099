"""Recording: what compiling for a package leaves: every artifact that was stored or found, and what was found right.

Place: in the place of the store, the failures and the compile cache of an environment, while ``exporting`` compiles.
Input: what they are asked. Output: the same answers; artifacts by key with their backend, confirmations by region.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from mixbackend.compile.open_environment import open_environment
from mixbackend.configuration import Config
from mixbackend.contracts import Backend, PackageError, Region
from mixbackend.execute.compile_cache import CompileCache
from mixbackend.execute.confirmations import Confirmations
from mixbackend.execute.failures import Failures
from mixbackend.host.debug import Fuel
from mixbackend.plan.environment import Environment
from mixbackend.registry import Resolution, resolution
from mixbackend.storage import ArtifactStore, Label, Storage
from mixbackend.storage.entry import UNKNOWN


@dataclass
class Record:
    """See the module's docstring.

    Attributes:
        contents: of artifacts, by key.
        labels: of artifacts that were made, by key.
        owners: names of the backends that keys were asked for.
        confirmed: (backend, key of the region, sizes) that were found right.
    """

    contents: dict[str, bytes] = field(default_factory=dict)
    labels: dict[str, Label] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    confirmed: dict[tuple[str, str, str], None] = field(default_factory=dict)


class _Store(ArtifactStore):
    """A store that notes what it gives and takes."""

    record: Record

    def get(self, key: str) -> bytes | None:
        content = super().get(key)
        if content is not None:
            self.record.contents[key] = content
        return content

    def put(self, key: str, content: bytes, label: Label = UNKNOWN) -> bool:
        self.record.contents[key], self.record.labels[key] = content, label
        return super().put(key, content, label)

    def discard(self, key: str, reason: str) -> None:
        self.record.contents.pop(key, None)
        super().discard(key, reason)


class _Storage(Storage):
    """What a configuration keeps, with such a store."""

    record: Record

    @cached_property
    def store(self) -> ArtifactStore:
        store = _Store.open(self._folder, remote=self._remote, max_gb=self._max_gb, report=self._report)
        assert isinstance(store, _Store)
        store.record = self.record
        return store


@dataclass(frozen=True)
class _Confirmations(Confirmations):
    """Confirmations that are noted, too."""

    record: Record = field(kw_only=True)

    def add(self, sizes: str) -> None:
        self.record.confirmed[self.backend, self.region, sizes] = None
        super().add(sizes)


class _Failures(Failures):
    """Failures with such confirmations."""

    record: Record

    def confirmations(self, backend: Backend, region: Region) -> Confirmations | None:
        known = super().confirmations(backend, region)
        if known is None:
            return None
        return _Confirmations(known.storage, known.region, known.backend, known.fingerprint, record=self.record)


class _Cache(CompileCache):
    """A compile cache that notes which key is of which backend."""

    record: Record

    def artifact_key(self, backend: Backend, region: Region, values: str = "") -> str:
        key = super().artifact_key(backend, region, values)
        self.record.owners[key] = backend.name
        return key


def recording_environment(config: Config) -> tuple[Environment, Record]:
    """An environment of the backends with regions that a package can hold, and what it will note.

    Raises:
        PackageError: a rule requires another backend.
    """
    found = packaged_backends(config)
    # Processes that measure candidates read the configuration, and are to have these alone.
    config = config.with_options({"backends": [item.name for item in found.backends]})
    environment, record = open_environment(config, found=found, kind=_Storage).for_good(), Record()
    storage, fingerprints = environment.storage, environment.fingerprints
    assert isinstance(storage, _Storage)
    failures = _Failures(storage, fingerprints)
    cache = _Cache(
        environment.reference,
        fingerprints,
        storage,
        failures,
        environment.events,
        Fuel(environment.debug.fuel),
    )
    storage.record = failures.record = cache.record = record
    made = replace(environment, failures=failures, compile_cache=cache, owns_weights=True)
    return made, record


def packaged_backends(config: Config) -> Resolution:
    """Those of a configuration that can be used here, with regions that other processes can run.

    Raises:
        PackageError: a rule requires one with regions that they cannot run.
    """
    found = resolution(config.backends, config.required_backends())
    left_out = {item.name for item in found.backends if item.traits().packaged == "no"}
    required = sorted(left_out & set(config.required_backends()))
    if required:
        raise PackageError(
            f"a rule requires {', '.join(required)}, whose regions run only where they were compiled",
            hint="take the requirement out of the configuration, or use torch.compile where the model runs",
        )
    kept = tuple(item for item in found.backends if item.name not in left_out)
    return replace(found, backends=kept)
