"""What is in a lock file, as values.

Place: between ``text`` and ``reading``, which know YAML, and ``making`` and ``lock``, which know plans.
Invariants: a region's ops follow from its nodes, and both are written: counts are what people review, nodes are what is
run. Nodes stand under their modules, each as ``operator@place`` (see ``partitioner.plan_canonical``). Numbers are
rounded, so that what is read is what was written.
Units: seconds.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from pydantic import Field

from mixbackend.configuration.fields import Flag, FrozenModel, Text
from mixbackend.contracts import Plan, PlannedRegion
from mixbackend.partitioner.plan_canonical import FIXED
from mixbackend.plan.choice import Choice

TOP_LEVEL = "top level"
"""Stands for the module path of ops that no module ran; paths have no spaces."""

Seconds = Annotated[float, Field(strict=True, ge=0.0, allow_inf_nan=False)]
Names = tuple[Text, ...]
Key = Annotated[str, Field(strict=True, pattern="^[0-9a-f]{64}$")]


class LockedBackend(FrozenModel):
    """A backend that could be chosen."""

    name: Text
    version: str
    fingerprint: str


class LockedMatch(FrozenModel):
    """A pattern of the owner that was chosen inside a region."""

    pattern: Text
    nodes: Names


class LockedTrial(FrozenModel):
    """A plan that was measured."""

    choice: Text
    median_s: Seconds


class LockedRegion(FrozenModel):
    """One region of a plan."""

    region: Text
    backend: Text
    estimated_s: Seconds
    measured_s: Seconds | None = None
    ops: dict[Text, Annotated[int, Field(strict=True, ge=1)]]
    nodes: Annotated[dict[Text, Annotated[Names, Field(min_length=1)]], Field(min_length=1)]
    copies: Names = ()
    matches: tuple[LockedMatch, ...] = ()

    def names(self) -> tuple[str, ...]:
        """All nodes, by their places."""
        return tuple(sorted((name for names in self.nodes.values() for name in names), key=place_of))

    def planned(self) -> PlannedRegion:
        """The region of a canonical plan."""
        matches = tuple((match.pattern, match.nodes) for match in self.matches)
        return PlannedRegion(self.region, self.backend, self.names(), self.copies, matches, self.estimated_s)


class LockedGraph(FrozenModel):
    """One graph and its plan."""

    graph: Text
    """Its name in the report of the run that made the entry."""
    made_by: Text
    """The command that made the entry."""
    phase: Literal["inference", "forward", "backward"]
    dynamic: Flag
    device: Text
    weights: Literal["constant", "live"]
    layout: Literal["as_traced", "channels_last"]
    key: Key
    inputs: tuple[Text, ...]
    estimated_s: Seconds
    single_backend_s: dict[Text, Seconds]
    chosen: str = ""
    """What won, in words; empty if nothing was measured."""
    measured: tuple[LockedTrial, ...] = ()
    regions: tuple[LockedRegion, ...]

    def choice(self) -> Choice:
        """The entry as placement takes it."""
        regions = tuple(region.planned() for region in self.regions)
        plan = Plan(
            "",
            self.phase,
            self.dynamic,
            regions,
            estimated_s=self.estimated_s,
            single_backend_s=tuple(self.single_backend_s.items()),
            search=FIXED,
        )
        return Choice(layout=self.layout, plan=plan, locked=True)

    def backends(self) -> tuple[str, ...]:
        """Names of the backends that run something."""
        return tuple(dict.fromkeys(region.backend for region in self.regions))

    def ops(self) -> Counter[str]:
        """How often each operator is in the graph."""
        return sum((Counter(region.ops) for region in self.regions), Counter())


class LockedJoint(FrozenModel):
    """What the forward of a training step saves for its backward, and what that computes again."""

    joint: Text
    made_by: Text
    layout: Literal["as_traced", "channels_last"]
    key: Key
    saved: Names
    recomputed: Names = ()


class MadeWith(FrozenModel):
    """What the plans were made with."""

    mixbackend: Text
    torch: Text
    threads: Annotated[int, Field(strict=True, ge=1)]
    backends: tuple[LockedBackend, ...]


class LockFile(FrozenModel):
    """A whole file."""

    version: Literal[1] = 1
    made_with: MadeWith
    joints: tuple[LockedJoint, ...] = ()
    graphs: tuple[LockedGraph, ...]

    def find(self, key: str) -> LockedGraph | None:
        """The entry of a graph."""
        return next((graph for graph in self.graphs if graph.key == key), None)

    def joint(self, key: str) -> LockedJoint | None:
        """What was decided about a joint graph."""
        return next((joint for joint in self.joints if joint.key == key), None)


def place_of(name: str) -> int:
    """The place in ``operator@place``."""
    return int(name.rpartition("@")[2])


def rounded(seconds: float) -> float:
    """Three digits: more would be noise in a review."""
    return float(f"{seconds:.3g}")
