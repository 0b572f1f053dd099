"""What a lock file says against what is here.

Place: between ``lock`` and what people read: an error under ``frozen``, an event otherwise.
Input: an entry and the facts of this process. Output: ``Difference`` values, and an error made of them.
Invariants: versions, device, threads and backends are compared one by one, so that each is named; of the backends,
those that the graph uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest

import torch

from mixbackend.contracts import Backend, LockError
from mixbackend.host.version import VERSION
from mixbackend.locking.model import LockedBackend, LockedGraph, LockFile, MadeWith
from mixbackend.reporting.records import CHANNELS_LAST, IdentityRecord

_COPY = "aten.clone.default"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as the file says.

    Attributes:
        graph: name of the graph in this process.
        what: the thing, in a word or a sentence.
        locked: what the file says, ``""`` if nothing.
        here: what is here, ``""`` if nothing.
    """

    graph: str
    what: str
    locked: str = ""
    here: str = ""

    def lines(self) -> list[str]:
        """As a difference of two texts."""
        if not self.locked and not self.here:
            return [f"! {self.what}"]
        sides = (("-", self.locked), ("+", self.here))
        return [f"{mark} {self.what}: {text}" for mark, text in sides if text]

    def __str__(self) -> str:
        if not self.locked and not self.here:
            return self.what
        return f"{self.what} is {self.here or 'not here'}, locked {self.locked or 'nothing'}"

    def to_dict(self) -> dict[str, str]:
        """Plain data for ``--json``."""
        return asdict(self)


class LockDifferencesError(LockError):
    """Something is not as a lock file says; ``differences`` holds all of it.

    Args:
        path: of the file.
        differences: at least one.
        made_by: the commands that make the entries anew.
    """

    def __init__(self, path: str, differences: Sequence[Difference], made_by: Iterable[str] = ()) -> None:
        self.differences = tuple(differences)
        text = "".join(f"\n    {line}" for line in _by_graph(self.differences))
        commands = " and ".join(f"`{command} --lock {path}`" for command in dict.fromkeys(made_by))
        anew = commands or f"`mixbackend tune MODEL --lock {path}`"
        super().__init__(
            what=f"what runs here is not what {path} says (- the file, + here){text}",
            hint=f"go back to what the file was made with, or make it anew with {anew} and review the difference",
        )


def _by_graph(differences: Sequence[Difference]) -> Iterator[str]:
    """Lines under the names of the graphs; versions and the like, which differ for every graph alike, only once."""
    said: set[str] = set()
    for graph in dict.fromkeys(item.graph for item in differences):
        lines = [line for item in differences if item.graph == graph for line in item.lines()]
        new = [line for line in dict.fromkeys(lines) if line not in said]
        said.update(new)
        if new:
            yield graph
            yield from (f"  {line}" for line in new)


def made_with(backends: Iterable[Backend]) -> MadeWith:
    """What plans are made with in this process."""
    listed = (
        LockedBackend(name=item.name, version=item.availability().version, fingerprint=item.fingerprint())
        for item in backends
    )
    return MadeWith(
        mixbackend=VERSION,
        torch=str(torch.__version__),
        threads=torch.get_num_threads(),
        backends=tuple(sorted(listed, key=lambda item: item.name)),
    )


def compare(
    graph_id: str, entry: LockedGraph, locked: MadeWith, identity: IdentityRecord, here: MadeWith
) -> list[Difference]:
    """All that differs for a graph beside its plan."""
    pairs = [
        ("mixbackend", locked.mixbackend, here.mixbackend),
        ("torch", locked.torch, here.torch),
        ("threads", str(locked.threads), str(here.threads)),
        ("device", entry.device, identity.device),
        ("weights", entry.weights, identity.weights),
    ]
    found = [Difference(graph_id, what, *sides) for what, *sides in pairs if sides[0] != sides[1]]
    present = {item.name: item for item in here.backends}
    for item in locked.backends:
        if item.name in entry.backends():
            found += _backend_differences(graph_id, item, present)
    return found


def _backend_differences(
    graph_id: str, locked: LockedBackend, present: Mapping[str, LockedBackend]
) -> Iterator[Difference]:
    found = present.get(locked.name)
    if found is None:
        yield Difference(graph_id, f"backend {locked.name}", locked.version or "used", "cannot be used here")
        return
    if found.version != locked.version:
        yield Difference(graph_id, f"backend {locked.name}", locked.version or "none", found.version or "none")
    if found.fingerprint != locked.fingerprint:
        what = f"fingerprint of {locked.name}"
        yield Difference(graph_id, what, locked.fingerprint or "none", found.fingerprint or "none")


def missing(
    graph_id: str, phase: str, identity: IdentityRecord, ops: Counter[str], file: LockFile, taken: set[str]
) -> list[Difference]:
    """What to say of a graph that is not in a file: what sets it apart from the most similar entry.

    Args:
        ops: how often each operator is in the graph that would be placed.
        taken: keys of the entries that other graphs of this process have.
    """
    alike = [entry for entry in file.graphs if entry.phase == phase and entry.key not in taken]
    if not alike:
        return [Difference(graph_id, f"the {phase} graph is not in the file, nor one like it")]
    nearest = max(alike, key=lambda entry: (_shared(entry.ops(), ops), entry.inputs == identity.inputs))
    found = [Difference(graph_id, f"the graph is not in the file; the most similar entry is {nearest.graph}")]
    for locked, here in _unequal(nearest.inputs, identity.inputs):
        found.append(Difference(graph_id, "input", locked, here))
    counts = nearest.ops()
    if nearest.layout == CHANNELS_LAST:
        # Copies from layout to layout belong to its plan.
        counts[_COPY] = ops[_COPY]
    for op in sorted({*counts, *ops}):
        if counts[op] != ops[op]:
            found.append(Difference(graph_id, op, f"{counts[op]} times", f"{ops[op]} times"))
    if len(found) == 1:
        found.append(Difference(graph_id, "same operators and inputs, other arguments, edges, sizes or weights inside"))
    return found


def _shared(first: Counter[str], second: Counter[str]) -> float:
    """Between 0 and 1: how much two graphs have in common."""
    return sum((first & second).values()) / max(1, sum((first | second).values()))


def _unequal(locked: Sequence[str], here: Sequence[str]) -> Iterator[tuple[str, str]]:
    for old, new in zip_longest(locked, here, fillvalue="none"):
        if old != new:
            yield old, new
