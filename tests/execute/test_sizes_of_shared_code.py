"""Code that equal regions share is admitted by the sizes of the region that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mixbackend.backends.eager import EagerBackend
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.contracts import (
    Availability,
    Backend,
    CompiledRegion,
    Condition,
    ErrorBudget,
    OpView,
    Region,
    Supported,
    SymbolicSize,
    TensorMeta,
    Traits,
    Unsupported,
    Verdict,
)
from mixbackend.contracts.torch_compat import forward_of
from mixbackend.registry import isolated_registry


class Wary(Backend):
    """Takes sums of exponentials whose first size is at least 8, and counts its calls by that size."""

    name = "wary"
    contract_version = "1.0"

    def __init__(self) -> None:
        self.compiled = 0
        self.sizes: list[int] = []

    def availability(self) -> Availability:
        return Availability(True, version="1")

    def fingerprint(self) -> str:
        return "1"

    def traits(self) -> Traits:
        return Traits(error_budget=ErrorBudget(factor=4.0, floor=64.0))

    def judge(self, view: OpView) -> Verdict:
        known = view.op in ("aten.exp.default", "aten.sum.dim_IntList")
        return Supported(1e-9) if known else Unsupported("unknown-op", view.op)

    def compile(self, region: Region) -> CompiledRegion:
        self.compiled += 1
        forward = forward_of(region.graph_module)
        (meta,) = [item.meta for item in region.inputs if isinstance(item.meta, TensorMeta)]
        size = meta.shape[0]
        assert isinstance(size, SymbolicSize)

        def run(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
            self.sizes.append(next(item.shape[0] for item in inputs if isinstance(item, torch.Tensor)))
            return forward(*inputs)

        return CompiledRegion(run, preconditions=(Condition(size, "at_least", 8),))


def test_each_region_asks_for_its_own_sizes(tmp_path: Any) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp().sum(1).tanh(), y.exp().sum(1).tanh()

    torch.compiler.reset()
    wary = Wary()
    with isolated_registry(wary, EagerBackend()):
        settings = {"backends": ["wary", "eager"], "cache": {"dir": str(tmp_path)}, "select": "off"}
        mixture = Mixture(load_config({**settings, "on_failure": "raise", "verify": {"when": "off"}}))
        compiled = torch.compile(function, backend=mixture, dynamic=True)
        for left, right in ((16, 24), (4, 32), (64, 5)):
            x, y = torch.randn(left, 3), torch.randn(right, 3)
            torch.testing.assert_close(compiled(x, y), function(x, y))
    torch.compiler.reset()
    assert wary.compiled == 1, "both sums are one piece of code"
    assert wary.sizes == [16, 24, 32, 64]
