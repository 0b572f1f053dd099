"""What a region's failure is called: the errors that users see of it.

Place: raised by ``execute.region_executor`` and ``compile.build``. Input: the backend, the region, and what happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from mixbackend.contracts import Backend, MixbackendError, Region, RegionRunError, VerificationError

FailureKind = Literal["run", "verify"]
"""Code raised, or returned something wrong."""


def describe_region(region: Region) -> str:
    """Where a region is, in the user's terms: its name, ops and source lines."""
    ops = ", ".join(dict.fromkeys(view.op for view in region.views))
    sources = "; ".join(region.sources[:4]) or "unknown source line"
    return f"region {region.id} ({ops}) from {sources}"


def failure(backend: Backend, region: Region, kind: FailureKind, text: str) -> MixbackendError:
    """A backend failed, and that is to be raised."""
    where, hint = describe_region(region), "forbid the backend for these ops, or use on_failure: repair"
    if kind == "run":
        return RegionRunError(f"backend {backend.name!r} failed while running a region: {text}", where, hint)
    return VerificationError(f"backend {backend.name!r} gave a wrong result: {text}", where, hint)


def half_written(backend: Backend, region: Region, names: Sequence[str], text: str) -> RegionRunError:
    """A backend failed when it may have written inputs already: eager cannot answer, for it would write them twice."""
    listed = ", ".join(names)
    return RegionRunError(
        what=f"backend {backend.name!r} failed while running a region that writes into {listed}: {text}",
        where=describe_region(region),
        hint=f"{listed} may hold the new values or the old ones: set them again, then repeat the call",
    )


def inputs_lost(backend: Backend, region: Region, names: Sequence[str]) -> VerificationError:
    """A backend wrote into what it must only read, and there is no copy."""
    listed = ", ".join(names)
    return VerificationError(
        what=f"backend {backend.name!r} wrote into {listed}, which it had not declared; the values cannot be put back",
        where=describe_region(region),
        hint="load the weights again; mend the backend, or forbid it for these ops",
    )
