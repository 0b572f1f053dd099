"""What the table of programs lacks is made by one thread: those that need something else do not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from regime_cases import WIDTH, BySize, function, named, value_of
from stand_in_backends import Faulty, Loopback, Packer
from torch import nn

from mixbackend.compile import program_entry as entry_module
from mixbackend.compile.making import Making, ReenteredError, claimed
from mixbackend.contracts import BoundRun, CompiledRegion, Region, Traits
from mixbackend.cost import costs as costs_module

LINES = {"small": (1e-6, 1e-7), "middle": (5e-6, 1e-8), "large": (1.5e-5, 1e-9), "eager": (1e-2, 1e-6)}
SMALL, MIDDLE, LARGE = 4, 100, 4000
"""Rows of ``WIDTH`` that each of them is the quickest for."""
PATIENCE_S = 20.0


@pytest.fixture(autouse=True)
def by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs_module, "cost_model", lambda *arguments, **keywords: BySize(lines=LINES))


class Gate:
    """A place where a thread waits until it may go on."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self.opened.wait(PATIENCE_S)


class Gated(Loopback):
    """Compiles once a gate is open, if it has one; then does what else it was told."""

    gate: Gate | None = None
    then: Callable[[], object] | None = None

    def traits(self) -> Traits:
        return Traits(concurrent_compile=True)

    def compile(self, region: Region) -> CompiledRegion:
        if self.gate is not None:
            self.gate.pass_through()
        if self.then is not None:
            then, self.then = self.then, None
            then()
        return super().compile(region)


class GatedPacker(Packer):
    """Binds certain weights, and compiles, once a gate is open."""

    gate: Gate | None = None
    slow: torch.Tensor | None = None

    def traits(self) -> Traits:
        return Traits(weights="refit", concurrent_compile=True)

    def compile(self, region: Region) -> CompiledRegion:
        compiled = super().compile(region)
        if self.gate is not None and self.slow is None:
            self.gate.pass_through()

        def bind(constants: Sequence[torch.Tensor | None]) -> BoundRun:
            if self.slow is not None and any(value is not None and value.equal(self.slow) for value in constants):
                assert self.gate is not None
                self.gate.pass_through()
            return compiled.bind(constants)

        return CompiledRegion(compiled.run, bind=bind, strides=compiled.strides)


class Call(threading.Thread):
    """A call in a thread of its own."""

    def __init__(self, run: Callable[[], torch.Tensor]) -> None:
        super().__init__(daemon=True)
        self._run = run
        self.result: torch.Tensor | None = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            with torch.no_grad():
                self.result = self._run()
        except BaseException as error:
            self.error = error

    def ended(self) -> torch.Tensor | None:
        self.join(PATIENCE_S)
        assert not self.is_alive(), "it waits for ever"
        return self.result


@pytest.fixture
def sized(make_mixture: Any) -> tuple[Any, Any, Gated]:
    """A mixture, the compiled function after a call of few rows, and the backend for many."""
    backends = [named(Gated, name) for name in ("small", "middle", "large")]
    mixture = make_mixture(*backends)
    compiled = torch.compile(function, backend=mixture)
    with torch.no_grad():
        compiled(value_of(SMALL))
    return mixture, compiled, backends[2]


def nothing_is_left_of(mixture: Any) -> bool:
    cells = [cell for graph in mixture._graphs for row in graph.rows for cell in row.entries]
    return not any(isinstance(cell, Making) for cell in cells)


def test_a_bucket_that_is_built_slowly_holds_up_no_other(sized: Any) -> None:
    mixture, compiled, large = sized
    large.gate = Gate()
    many, some = value_of(LARGE), value_of(MIDDLE)
    slow = Call(lambda: compiled(many))
    assert large.gate.reached.wait(PATIENCE_S)
    quick = Call(lambda: compiled(some))
    torch.testing.assert_close(quick.ended(), function(some))
    assert slow.is_alive()
    large.gate.opened.set()
    torch.testing.assert_close(slow.ended(), function(many))
    assert len(large.compiled) == 1 and nothing_is_left_of(mixture)


def test_those_that_need_the_same_bucket_wait_for_it(sized: Any) -> None:
    _, compiled, large = sized
    large.gate = Gate()
    many = value_of(LARGE)
    calls = [Call(lambda: compiled(many)) for _ in range(3)]
    assert large.gate.reached.wait(PATIENCE_S)
    large.gate.opened.set()
    for call in calls:
        torch.testing.assert_close(call.ended(), function(many))
    assert len(large.compiled) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_maker_that_is_interrupted_leaves_the_cell_to_the_next(sized: Any, error: type[BaseException]) -> None:
    mixture, compiled, large = sized

    def interrupted() -> None:
        raise error("in the middle")

    large.gate, large.then = Gate(), interrupted
    many = value_of(LARGE)
    maker = Call(lambda: compiled(many))
    assert large.gate.reached.wait(PATIENCE_S)
    waiting = Call(lambda: compiled(many))
    waiting.join(0.2)
    assert waiting.is_alive()
    large.gate.opened.set()
    maker.ended()
    assert maker.error is not None and error.__name__ in f"{type(maker.error).__name__} {maker.error}"
    torch.testing.assert_close(waiting.ended(), function(many))
    assert nothing_is_left_of(mixture)
    torch.testing.assert_close(compiled(many), function(many))


def test_a_graph_that_is_called_by_what_builds_it_is_eagers(sized: Any) -> None:
    mixture, compiled, large = sized
    many, inner = value_of(LARGE), []
    large.then = lambda: inner.append(compiled(many))
    torch.testing.assert_close(Call(lambda: compiled(many)).ended(), function(many))
    torch.testing.assert_close(inner, [function(many)])
    assert len(large.compiled) == 1 and nothing_is_left_of(mixture)


def test_weights_that_are_bound_slowly_hold_up_no_others(make_mixture: Any) -> None:
    packer = named(GatedPacker, "small")
    layers = [nn.Linear(WIDTH, WIDTH, bias=False).eval() for _ in range(3)]
    mixture, value = make_mixture(packer), torch.randn(SMALL, WIDTH)
    run = torch.compile(lambda layer, value: layer(value), backend=mixture)
    first, second, third = layers
    with torch.no_grad():
        run(first, value)
        expected = [layer(value) for layer in layers]
    packer.gate, packer.slow = Gate(), second.weight.detach().t()
    slow = Call(lambda: run(second, value))
    assert packer.gate.reached.wait(PATIENCE_S)
    same = Call(lambda: run(second, value))
    for layer, right in ((first, expected[0]), (third, expected[2])):
        torch.testing.assert_close(Call(lambda layer=layer: run(layer, value)).ended(), right)
    assert slow.is_alive() and same.is_alive()
    packer.gate.opened.set()
    for call in (slow, same):
        torch.testing.assert_close(call.ended(), expected[1])
    (graph,) = mixture._graphs
    assert len(graph.rows) == 3 and packer.binds == 3


def test_a_bucket_that_is_built_while_weights_change_runs_the_new_ones(make_mixture: Any) -> None:
    small, large = named(GatedPacker, "small"), named(GatedPacker, "large")
    layer = nn.Linear(WIDTH, WIDTH).eval()
    compiled = torch.compile(layer, backend=make_mixture(small, large), dynamic=True)
    many, few = torch.randn(LARGE, WIDTH), torch.randn(SMALL, WIDTH)
    with torch.no_grad():
        compiled(few)
    large.gate = Gate()
    slow = Call(lambda: compiled(many))
    assert large.gate.reached.wait(PATIENCE_S)
    with torch.no_grad():
        layer.weight.mul_(2.0)
        torch.testing.assert_close(Call(lambda: compiled(few)).ended(), layer(few))
        large.gate.opened.set()
        slow.ended()
        assert slow.error is None
        calls = large.calls
        torch.testing.assert_close(compiled(many), layer(many))
    assert large.calls == calls + 1


def test_a_repair_begins_again_with_a_program_that_came_meanwhile(make_mixture: Any, monkeypatch: Any) -> None:
    class Small(Faulty):
        name = "small"

    mixture = make_mixture(Small(run_error=RuntimeError("no")), named(Loopback, "middle"), on_failure="repair")
    compiled, value, seen = torch.compile(function, backend=mixture, dynamic=False), torch.randn(8, WIDTH), []
    repaired = entry_module.repaired

    def disturbed(program: Any, *arguments: Any) -> Any:
        seen.append(program)
        if len(seen) == 1:
            (graph,) = mixture._graphs
            graph.rows[0].home.rehearse(False)
        return repaired(program, *arguments)

    monkeypatch.setattr(entry_module, "repaired", disturbed)
    torch.testing.assert_close(compiled(value), function(value))
    assert len(seen) == 2 and seen[0] is not seen[1]
    (graph,) = mixture.report().graphs
    assert {region.backend for region in graph.plan.regions} == {"middle"}
    assert [event.kind for event in mixture.report().events].count("repair") == 1


def test_a_claim_gives_back_what_was_in_the_cell() -> None:
    lock, table = threading.Lock(), {"full": "before"}
    for key, before in (("full", "before"), ("empty", None)):
        with pytest.raises(KeyboardInterrupt), claimed(lock, table, key) as found:
            assert found == before and isinstance(table[key], Making) and not lock.locked()
            with pytest.raises(ReenteredError), claimed(lock, table, key):
                pass
            raise KeyboardInterrupt
        assert table.get(key) == before
    with claimed(lock, table, "empty"):
        table["empty"] = "after"
    assert table == {"full": "before", "empty": "after"}
