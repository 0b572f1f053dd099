"""A backend that runs regions with torch and sleeps at every call: who sleeps least is the quickest."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from mixbackend.contracts import (
    Availability,
    Backend,
    CompiledRegion,
    OpView,
    Region,
    Supported,
    Traits,
    Verdict,
    refuse_special,
)


class Sleeper(Backend):
    """Hands out fresh row-major tensors, as a foreign runtime would.

    Args:
        name: of the backend, and of its pool of threads.
        seconds: that each call sleeps.
    """

    name = "sleeper"
    contract_version = "1.0"

    def __init__(self, name: str, seconds: float) -> None:
        self.name = name  # type: ignore[misc]
        self.seconds = seconds
        self.calls = 0

    def availability(self) -> Availability:
        return Availability(True, version="1")

    def fingerprint(self) -> str:
        return f"{self.name} 1"

    def traits(self) -> Traits:
        return Traits(thread_pool=self.name)

    def judge(self, view: OpView) -> Verdict:
        return refuse_special(view) or Supported()

    def compile(self, region: Region) -> CompiledRegion:
        forward = region.graph_module.forward

        def run(inputs: Sequence[Any]) -> list[torch.Tensor]:
            self.calls += 1
            time.sleep(self.seconds)
            return [output.clone(memory_format=torch.contiguous_format) for output in forward(*inputs)]

        return CompiledRegion(run, strides="contiguous")
