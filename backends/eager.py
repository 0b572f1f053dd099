"""Eager: torch itself, operator by operator. Runs whatever no other backend takes, and is the standard of results.

Place: a backend like the others, always available. A region runs as the generated code of its own fx graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from mixbackend.contracts import (
    Availability,
    Backend,
    BuildSeconds,
    CompiledRegion,
    ErrorBudget,
    OpView,
    Region,
    Supported,
    Traits,
    Verdict,
    thread_policy,
)
from mixbackend.contracts.compiled_body import with_direct_calls
from mixbackend.contracts.gpu import gpu_fingerprint
from mixbackend.contracts.torch_compat import forward_of


class EagerBackend(Backend):
    """Supports every operator with torch's own kernels."""

    name: ClassVar[str] = "eager"
    contract_version: ClassVar[str] = "1.0"

    def availability(self) -> Availability:
        """Always available."""
        return Availability(True, version=torch.__version__)

    def fingerprint(self) -> str:
        """Torch's version and thread count, and on which GPU, with which precision it runs."""
        gpu = f" gpu {gpu_fingerprint()}" if torch.cuda.is_available() else ""
        return f"torch {torch.__version__} threads {thread_policy().threads}{gpu}"

    def traits(self) -> Traits:
        """Takes everything, effects and random ops included, on every device."""
        return Traits(
            device_types=frozenset({"cpu", "cuda", "xpu", "mps", "meta"}),
            capturable=True,
            packaged="data",
            deterministic=False,
            keeps_random_stream=True,
            takes_effects=True,
            mixes_devices=True,
            reference=True,
            error_budget=ErrorBudget(factor=1.0, floor=0.0),
        )

    def build_seconds(self, device_type: str) -> BuildSeconds:
        """Writing a Python function."""
        return BuildSeconds(region_s=0.001)

    def judge(self, view: OpView) -> Verdict:
        """Every operator that was traced can run in eager."""
        return Supported()

    def compile(self, region: Region) -> CompiledRegion:
        """The fx graph's own generated Python, which calls compiled bodies itself."""
        forward = forward_of(with_direct_calls(region.graph_module))

        def run(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
            return forward(*inputs)

        return CompiledRegion(run, source=region.graph_module.code, strides="unknown")
