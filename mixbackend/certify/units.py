"""Units: what a process is asked for at once: some samples of one source, of one type, static or dynamic.

Place: between samples and the processes that trace them. Input: ``Options``. Output: units in a fixed order.
Invariants: a unit is plain data; its samples are the same in every process.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from mixbackend.certify import own_samples, torch_samples
from mixbackend.certify.samples import Sample, load_samples
from mixbackend.contracts import Phase

Source = Literal["given", "own", "torch"]
SOURCES: tuple[Source, ...] = get_args(Source)

DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool", "complex64")
DYNAMIC_DTYPES = ("float32", "bfloat16", "int64")
BACKWARD_DTYPES = ("float32", "bfloat16")
FIRST = "float32"
"""The type that most samples are asked of."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Some samples.

    Attributes:
        source: ``torch``, ``own``, or ``given`` by the vendor.
        name: of the entry of torch's database, or of the sample.
        dtype: element type, ``""`` where the sample says it.
        dynamic: whether sizes are symbolic.
        phase: inference or backward.
        most: samples of an entry.
        place: ``module:name`` of given samples.
    """

    source: Source
    name: str
    dtype: str
    dynamic: bool
    phase: Phase
    most: int
    place: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is asked.

    Attributes:
        quick: little of everything.
        ops: words, of which an operator's name has one; all operators where there are none.
        given: ``module:name`` of the vendor's samples, or the samples themselves.
        sources: where the samples come from that are asked.
    """

    quick: bool = False
    ops: tuple[str, ...] = ()
    given: str | tuple[Sample, ...] = ()
    sources: tuple[Source, ...] = SOURCES

    def wants(self, op: str) -> bool:
        """Whether an operator is asked about."""
        return not self.ops or any(word in op for word in self.ops)


def units_of(extent: Extent) -> list[Unit]:
    """Units to begin with: the vendor's, then ours, then torch's with sizes that are known."""
    place = extent.given if isinstance(extent.given, str) else ""
    given = given_samples(extent.given)
    sources: list[tuple[Source, Sequence[Sample]]] = [("given", given), ("own", own_samples.all_samples())]
    found = [
        Unit(source, sample.name, "", dynamic, sample.phase, 1, place if source == "given" else "")
        for source, samples in sources
        if source in extent.sources
        for sample in samples
        for dynamic in (False, True)
    ]
    if "torch" not in extent.sources or torch_samples.missing():
        return found
    return found + [
        Unit("torch", name, dtype, extent.quick, "inference", _most(extent.quick, dtype))
        for name, dtype in _first_types(extent.quick).items()
        if _may_hold(extent.ops, name)
    ]


def following(extent: Extent, asked: Iterable[Unit], claimed: Container[Unit], known: Container[Unit]) -> list[Unit]:
    """Units to go on with, by what the backend said about those before; none where nothing is left to ask.

    Symbolic sizes and gradients of what is claimed; further types where not every operator is unknown. A quick run has
    begun with symbolic sizes; it asks about known ones where nothing is claimed.

    Args:
        asked: the units before.
        claimed: those of which the backend claims something.
        known: those of which it knows an operator, whether or not it takes it with these types.
    """
    units = [unit for unit in asked if unit.source == "torch" and unit.phase == "inference"]
    if extent.quick:
        return [replace(unit, dynamic=False) for unit in units if unit.dynamic and unit not in claimed]
    first, static = _first_types(False), [unit for unit in units if not unit.dynamic]
    some = {dtype: set(torch_samples.names(dtype, "backward")) for dtype in BACKWARD_DTYPES} if static else {}
    supported = {dtype: set(torch_samples.names(dtype, "inference")) for dtype in DTYPES} if static else {}
    taken = [unit for unit in static if unit in claimed]
    return [
        *(
            replace(unit, dtype=dtype, most=_most(False, dtype))
            for unit in static
            if unit in known and unit.dtype == first[unit.name]
            for dtype in DTYPES
            if dtype != unit.dtype and unit.name in supported[dtype]
        ),
        *(replace(unit, dynamic=True, most=2) for unit in taken if unit.dtype in DYNAMIC_DTYPES),
        *(replace(unit, phase="backward", most=2) for unit in taken if unit.name in some.get(unit.dtype, ())),
    ]


def _first_types(quick: bool) -> dict[str, str]:
    """Entries of torch's database with the type that they are asked about first."""
    types = (FIRST,) if quick else DTYPES
    return {name: dtype for dtype in reversed(types) for name in torch_samples.names(dtype, "inference")}


def given_samples(given: str | Sequence[Sample]) -> tuple[Sample, ...]:
    """The vendor's samples."""
    if isinstance(given, str):
        return load_samples(given) if given else ()
    return tuple(given)


def _most(quick: bool, dtype: str) -> int:
    if quick:
        return 1
    return 6 if dtype == FIRST else 2


def _may_hold(words: Sequence[str], entry: str) -> bool:
    """Whether an entry of torch's database may use an operator that has one of the words in its name."""
    parts = [part.strip("_") for word in words for part in word.removeprefix("aten.").split(".")[:1]]
    return not parts or any(part and (part in entry or entry.split(".")[-1] in part) for part in parts)


def samples_of(unit: Unit, given: Sequence[Sample] = ()) -> list[Sample]:
    """The samples of a unit.

    Args:
        given: the vendor's samples, where they cannot be loaded by their place.
    """
    if unit.source == "torch":
        return torch_samples.samples(unit.name, unit.dtype, unit.dynamic, unit.phase, unit.most)
    known = own_samples.all_samples() if unit.source == "own" else given or given_samples(unit.place)
    return [replace(sample, dynamic=unit.dynamic) for sample in known if sample.name == unit.name]
