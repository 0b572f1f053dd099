"""A backend of a lower level is asked, and compiles, in its own operators; those of the level ``aten`` pay nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from plain_backend import PlainBackend

from mixbackend.contracts import (
    CompiledRegion,
    Condition,
    OpRule,
    Supported,
    SupportTable,
    SymbolicSize,
    Traits,
    Unsupported,
    lowered,
)
from mixbackend.contracts.asked import ask
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten


class Small(PlainBackend):
    """Takes some prims, at a price."""

    name = "small"
    takes = frozenset({"prims.mul.default", "prims.erf.default", "prims.add.default"})
    cost: float | None = 1e-6
    level = "prims"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.compiled: list = []

    def traits(self) -> Traits:
        return Traits(level=self.level, writes_inputs=True)

    def judge(self, view):
        self.asked.append(view.op)
        known = view.op in self.takes or view.op == "aten.copy_.default"
        return Supported(self.cost) if known else Unsupported("unknown-op", f"no rule for {view.op}")

    def compile(self, region):
        self.compiled.append(region)
        return CompiledRegion(region.graph_module.forward, preconditions=(Condition(4, "equal", 4),))


def _view(function, *inputs):
    return trace_region(function, list(inputs)).views[-1]


def test_the_verdict_is_that_on_all_an_op_becomes():
    backend = Small()
    assert ask(backend).judge(_view(aten.gelu, torch.randn(4))) == Supported(pytest.approx(5e-6))
    assert backend.asked == ["prims.mul.default"] * 2 + ["prims.erf.default", "prims.add.default", "prims.mul.default"]


def test_one_step_without_a_price_leaves_the_price_open():
    backend = Small()
    backend.cost = None
    assert ask(backend).judge(_view(aten.gelu, torch.randn(4))) == Supported(None)


def test_a_refusal_names_the_step():
    verdict = ask(Small()).judge(_view(aten.silu, torch.randn(4)))
    assert isinstance(verdict, Unsupported) and verdict.code == "decomposition"
    assert verdict.detail.startswith("aten.silu.default becomes prims.") and "no rule for prims." in verdict.detail


def test_an_operator_of_the_level_is_refused_in_the_backends_own_words():
    view = _view(aten.mm, torch.randn(2, 2), torch.randn(2, 2))
    assert ask(Small()).judge(view) == Unsupported("unknown-op", "no rule for aten.mm.default")


def test_what_is_not_lowered_is_refused_and_writes_are_asked_as_they_are():
    assert ask(Small()).judge(_view(aten.bernoulli, torch.rand(4))).code == "decomposition"
    backend = Small()
    assert isinstance(ask(backend).judge(_view(aten.copy_, torch.rand(4), torch.rand(4))), Supported)
    assert backend.asked == ["aten.copy_.default"]


def test_it_compiles_and_loads_regions_of_its_level():
    backend = Small()
    region = trace_region(aten.gelu, [torch.randn(4)])
    compiled = ask(backend).compile(region)
    (given,) = backend.compiled
    assert given.level == "prims" and given.key == lowered(region, "prims").key
    x = torch.randn(4)
    torch.testing.assert_close(compiled.run([x])[0] if False else given.graph_module.forward(x)[0], aten.gelu(x))
    assert len(compiled.preconditions) == 1


def test_what_the_lowering_assumed_is_checked_before_calls(monkeypatch):
    from dataclasses import replace

    from mixbackend.contracts import asked

    region = trace_region(aten.gelu, [torch.randn(4, 6)], dynamic=True)
    size = region.inputs[0].meta.shape[0]
    assert isinstance(size, SymbolicSize)
    assumed = Condition(size, "at_least", 3)
    monkeypatch.setattr(asked, "lowered", lambda given, level: replace(given, preconditions=(assumed,)))
    assert ask(Small()).compile(region).preconditions == (assumed, Condition(4, "equal", 4))


def test_the_level_and_torch_are_part_of_the_fingerprint():
    small, plain = Small(), Small()
    plain.level = "aten"
    assert ask(plain).fingerprint() == "small 1"
    assert ask(small).fingerprint().startswith(f"small 1 level=prims lowered-by={torch.__version__}")


def test_getitem_is_not_asked_about():
    class Splits(Small):
        takes = frozenset({"aten.slice.Tensor", "aten.max.dim"})

    backend = Splits()
    region = trace_region(lambda x: aten.max.dim(aten.split(x, 2)[0], 0)[0], [torch.randn(4, 4)])
    assert all(isinstance(ask(backend).judge(view), Supported) for view in region.views)
    assert "getitem" not in backend.asked


def test_backends_of_the_level_aten_never_load_decompositions():
    program = """
import sys, torch
from mixbackend.contracts import Supported
from mixbackend.contracts.asked import ask
from mixbackend.graph.trace import trace_region
from mixbackend.backends.eager import EagerBackend
before = set(sys.modules)
region = trace_region(torch.nn.functional.gelu, [torch.randn(4)])
backend = ask(EagerBackend())
assert isinstance(backend.judge(region.views[0]), Supported)
backend.compile(region)
late = {name for name in set(sys.modules) - before if "lowering" in name or name in ("torch._refs", "torch._prims")}
assert not late and "mixbackend.contracts.op_lowering" not in sys.modules, late
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_table_of_a_level_may_test_arguments():
    class Tabled(Small):
        table = SupportTable({"prims.sum.default": OpRule(ranks=(0, 2)), "prims.div.default": OpRule()})

        def judge(self, view):
            return self.table.judge(view)

    assert ask(Tabled()).judge(_view(lambda x: aten.mean.dim(x, [0]), torch.randn(3, 4))) == Supported()
    refused = ask(Tabled()).judge(_view(lambda x: aten.mean.dim(x, [0]), torch.randn(3, 4, 5)))
    assert refused == Unsupported("decomposition", "aten.mean.dim becomes prims.sum.default: rank 3, needed 0 to 2")
