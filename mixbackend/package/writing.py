"""Writing: from what was compiled to the members of a package.

Place: last step of ``exporting``. Input: compiled programs, their weights, what was recorded while they were compiled.
Output: the members, and the manifest that names them all.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

import mixbackend.storage.entry as entry
from mixbackend.compile.executable import Executable
from mixbackend.contracts import CONTRACT_VERSION, TensorMeta
from mixbackend.graph.identity import Identity
from mixbackend.host.devices import device_name
from mixbackend.host.version import VERSION
from mixbackend.locking.differences import made_with
from mixbackend.locking.making import locked_graphs
from mixbackend.locking.model import LockFile
from mixbackend.locking.text import lock_text
from mixbackend.package.container import PackageWriter
from mixbackend.package.exported import ExportedGraph
from mixbackend.package.model import (
    LOCK,
    WEIGHTS,
    Confirmation,
    MadeWith,
    Manifest,
    PackagedArtifact,
    PackagedBackend,
    PackagedGraph,
)
from mixbackend.package.recording import Record
from mixbackend.package.weights import stored_weights, write_weights
from mixbackend.plan.environment import Environment
from mixbackend.reporting.records import IdentityRecord
from mixbackend.storage.entry import UNKNOWN

COMMAND = "mixbackend export"


@dataclass(frozen=True)
class CompiledProgram:
    """A program that was compiled for a package.

    Attributes:
        method: that the program is of.
        packaged: what is written of it.
        executable: what was built.
        identity: of its graph.
    """

    method: str
    packaged: PackagedGraph
    executable: Executable
    identity: Identity


@dataclass
class Weights:
    """The weights of all programs, by names of the package: a name stands for one tensor."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)

    def names(self, method: str, graph: ExportedGraph) -> tuple[str, ...]:
        """The package's names of a program's weights."""
        names = []
        for name, tensor in graph.weights.items():
            new = name
            while new in self.tensors and not _same(self.tensors[new], tensor):
                new = f"{method}.{new}"
            self.tensors[new] = tensor
            self.written |= {new} if name in graph.written else set()
            names.append(new)
        return tuple(names)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same view of the same memory."""
    form, other_form = ((item.shape, item.stride(), item.dtype, item.device) for item in (one, other))
    return form == other_form and one.data_ptr() == other.data_ptr()


def write_package(
    writer: PackageWriter,
    programs: Sequence[CompiledProgram],
    weights: Weights,
    environment: Environment,
    record: Record,
) -> None:
    """Write all members, then the manifest."""
    methods: dict[str, tuple[str, ...]] = {}
    for program in programs:
        content = program.packaged.model_dump_json().encode()
        name = writer.add(f"graphs/{program.packaged.id}.json", content)
        methods[program.method] = (*methods.get(program.method, ()), name)
    writer.add(LOCK, _lock(programs, environment).encode())
    stored, packaged = stored_weights(weights.tensors, frozenset(weights.written))
    writer.add_mapped(WEIGHTS, lambda write: write_weights(stored, write))
    artifacts = tuple(_artifacts(writer, record))
    backends = tuple(_backends(writer, programs, environment))
    confirmed = tuple(Confirmation(backend=item[0], region=item[1], sizes=item[2]) for item in record.confirmed)
    writer.finish(
        Manifest(
            made_with=MadeWith(
                mixbackend=VERSION,
                contract=CONTRACT_VERSION,
                torch=str(torch.__version__),
                threads=torch.get_num_threads(),
                machine=f"{platform.system()} {platform.machine()}",
            ),
            backends=backends,
            runners_up=tuple(sorted(_runners_up(programs) - {item.name for item in backends})),
            methods=methods,
            weights=packaged,
            artifacts=artifacts,
            confirmed=confirmed,
            members=dict(writer.members),
        )
    )


def _artifacts(writer: PackageWriter, record: Record) -> Iterator[PackagedArtifact]:
    for key, content in record.contents.items():
        label = record.labels.get(key, UNKNOWN)
        name = writer.add(f"artifacts/{key}.artifact", entry.encode(key, content, label))
        yield PackagedArtifact(key=key, backend=record.owners[key], member=name)


def _backends(
    writer: PackageWriter, programs: Sequence[CompiledProgram], environment: Environment
) -> Iterator[PackagedBackend]:
    """Those that run some region, for each kind of device that they run it on."""
    used: dict[tuple[str, str], None] = {}
    for program in programs:
        for row in program.executable.rows:
            graph = row.home.graph
            types = {item.meta.device.type for item in graph.inputs if isinstance(item.meta, TensorMeta)}
            names = {region.backend for entry in row.built for region in entry.plan.regions}
            names |= _planned(program.packaged)
            used.update(((name, kind), None) for name in sorted(names) for kind in sorted(types or {"cpu"}))
    for name, kind in used:
        backend = environment.planner.backend(name)
        if kind not in backend.traits().device_types:
            continue
        kit = backend.kit(kind)
        yield PackagedBackend(
            name=name,
            device=kind,
            product=device_name(kind),
            version=backend.availability().version,
            fingerprint=backend.fingerprint(),
            loading=backend.loading(kind),
            native=backend.traits().packaged == "native",
            kit="" if kit is None else writer.add(f"kits/{name}-{kind}", kit),
        )


def _planned(packaged: PackagedGraph) -> set[str]:
    buckets = () if packaged.plan is None else packaged.plan.buckets
    return {region["backend"] for bucket in buckets for region in bucket.plan["regions"]}


def _runners_up(programs: Sequence[CompiledProgram]) -> set[str]:
    buckets = [bucket for item in programs if item.packaged.plan is not None for bucket in item.packaged.plan.buckets]
    return {name for bucket in buckets for names in bucket.runners_up.values() for name in names}


def _lock(programs: Sequence[CompiledProgram], environment: Environment) -> str:
    """The plans for people: what ``mixbackend tune --lock`` would write of them."""
    records = []
    for program in programs:
        for item in program.executable.records()[:1]:
            graph = program.identity.graph
            weights = "live" if program.packaged.plan is None or not program.packaged.plan.constants else "constant"
            known = IdentityRecord(program.identity.key, program.identity.passed, weights, environment.device(graph))
            records.append(replace(item, identity=known))
    graphs = locked_graphs(records, COMMAND)
    return lock_text(LockFile(made_with=made_with(environment.backends), graphs=graphs))
