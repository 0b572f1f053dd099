"""Library backends: the frame that backends of kernel libraries share.

Place: base class of the backends of oneDNN, cuDNN and cuBLASLt. A library is its verdicts, its patterns and its rules
(``Kernels``); what a backend still states itself is where it can be used, what it promises, and what to expect of it.
Invariants: kernels are imported when the first op is judged, so that listing backends stays cheap; a region of nothing
but views and copies is refused, since eager does that as well.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from mixbackend.backends.common.library.region import compile_region, without_work
from mixbackend.backends.common.library.rules import Library
from mixbackend.contracts import (
    Backend,
    BuildSeconds,
    CompiledRegion,
    DeviceModel,
    OpView,
    Pattern,
    Probe,
    Region,
    RegionSketch,
    Unsupported,
    Verdict,
)


@dataclass(frozen=True)
class Kernels:
    """What a library can run.

    Attributes:
        judge: ``Backend.judge``.
        patterns: ops that become one call.
        library: how calls are written.
    """

    judge: Callable[[OpView], Verdict]
    patterns: tuple[Pattern, ...]
    library: Library


class LibraryBackend(Backend):
    """See the module's docstring.

    Class attributes:
        probed: classes of ops that it has kernels for; of others the standard probes tell nothing.
    """

    probed: ClassVar[frozenset[str]]

    @abstractmethod
    def kernels(self) -> Kernels:
        """The library; asked once, and the place to import it."""

    @cached_property
    def _kernels(self) -> Kernels:
        return self.kernels()

    def judge(self, view: OpView) -> Verdict:
        """It takes what has a kernel, and what only moves data between kernels."""
        return self._kernels.judge(view)

    def patterns(self) -> tuple[Pattern, ...]:
        """Kernels with what follows them."""
        return self._kernels.patterns

    def decline(self, sketch: RegionSketch) -> Unsupported | None:
        """Views and copies alone are eager's."""
        return without_work(sketch)

    def probes(self, device: DeviceModel) -> tuple[Probe, ...]:
        """The standard ones of the classes that it has kernels for."""
        return tuple(probe for probe in super().probes(device) if probe.op_class in self.probed)

    def build_seconds(self, device_type: str) -> BuildSeconds:
        """Writing a Python function around kernels that exist, and packing weights."""
        return BuildSeconds(region_s=0.005)

    def compile(self, region: Region) -> CompiledRegion:
        """Write the calls."""
        return compile_region(region, self._kernels.library, self.name)
