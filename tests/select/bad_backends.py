"""Backends that no tuned plan may contain: each claims everything for nothing, and is bad in one way.

They reach the processes that measure as any plug-in does: through entry points of an installed distribution.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

from plain_backend import PlainBackend

from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import CompiledRegion, OpView, Region, Supported, Verdict, refuse_special


class Bad(PlainBackend):
    """Runs regions with torch, after ``spoil``."""

    def judge(self, view: OpView) -> Verdict:
        return refuse_special(view) or Supported(0.0)

    def compile(self, region: Region) -> CompiledRegion:
        honest = EagerBackend().compile(region)

        def run(values: list[Any]) -> Any:
            return self.spoil(list(honest.run(values)))

        return CompiledRegion(run)

    def spoil(self, results: list[Any]) -> list[Any]:
        raise NotImplementedError


class Slow(Bad):
    """Right, and slow."""

    name = "bad_slow"

    def spoil(self, results: list[Any]) -> list[Any]:
        time.sleep(0.05)
        return results


class Wrong(Bad):
    """Quick, and wrong."""

    name = "bad_wrong"

    def spoil(self, results: list[Any]) -> list[Any]:
        return [result * 1.5 for result in results]


class Crash(Bad):
    """Ends its process by a segmentation fault."""

    name = "bad_crash"

    def spoil(self, results: list[Any]) -> list[Any]:
        ctypes.string_at(0)
        return results


class Hang(Bad):
    """Never comes back."""

    name = "bad_hang"

    def spoil(self, results: list[Any]) -> list[Any]:
        time.sleep(3600)
        return results
