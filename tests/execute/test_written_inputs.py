"""Backends that write into inputs of regions: what they wrote is verified, put back after a failure, and counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from counting_module import Counter

from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import (
    CompiledRegion,
    Plan,
    PlannedRegion,
    Region,
    Supported,
    Unsupported,
    VerificationError,
    refuse_special,
)
from mixbackend.execute.answers import ExecutionPolicy
from mixbackend.execute.region_code import RegionCode
from mixbackend.execute.region_executor import RegionExecutor
from mixbackend.graph.regions import cut_regions
from mixbackend.graph.trace import trace_graph, trace_region
from mixbackend.partitioner.judging import refused_by_traits

COPY = torch.ops.aten.copy_.default
Damage = Callable[[Sequence[Any], list[torch.Tensor]], None]


def writer(loopback_class: type, damage: Damage | None = None):
    """A loopback that takes ``copy_`` and, given one, damages inputs or outputs after each run.

    Once it ``refuses``, its regions raise before they do anything.
    """

    class Writer(loopback_class):
        name = "writer"

        def __init__(self) -> None:
            super().__init__()
            self.damage = damage
            self.refuses = False
            self.refused = 0

        def traits(self):
            return replace(super().traits(), writes_inputs=True, raises_before_writing=True)

        def judge(self, view):
            return refuse_special(view, writes_inputs=True) or Supported()

        def compile(self, region: Region) -> CompiledRegion:
            self.compiled.append(region)

            def run(inputs):
                if self.refuses:
                    self.refused += 1
                    raise RuntimeError("device lost")
                self.calls += 1
                # A foreign runtime knows nothing of versions: it works on aliases that have their own.
                outputs = list(region.graph_module.forward(*[_detached(value) for value in inputs]))
                if self.damage is not None:
                    self.damage([_detached(inputs[place]) for place in region.written], outputs)
                pairs = zip(outputs, region.outputs, strict=True)
                return [value.clone() if item.alias_of is None else inputs[item.alias_of] for value, item in pairs]

            return CompiledRegion(run, strides="unknown")

    return Writer()


def _detached(value: Any) -> Any:
    return value.data if isinstance(value, torch.Tensor) else value


def spoil_output(written, outputs):
    outputs[0].add_(1.0)


def spoil_buffer(written, outputs):
    written[0].add_(1)


def break_down(written, outputs):
    written[0].add_(1)
    raise RuntimeError("out of memory")


@pytest.mark.parametrize("when", ["first_call", "sampled", "always"])
def test_right_writes_are_taken(make_mixture, loopback, when):
    backend = writer(type(loopback))
    mixture = make_mixture(backend, verify={"when": when})
    eager, compiled = Counter(), Counter()
    run = torch.compile(compiled, backend=mixture)
    for step in range(4):
        value = torch.randn(3, 4)
        torch.testing.assert_close(run(value), eager(value))
        torch.testing.assert_close(compiled.total, eager.total)
        assert compiled.calls == step + 1, "every call is counted once, verified or not"
    assert mixture.report().events == ()
    assert backend.calls == 4
    assert any(region.written for region in backend.compiled)


@pytest.mark.parametrize("damage", [spoil_output, spoil_buffer, break_down])
def test_after_a_failed_first_call_buffers_are_as_eager_leaves_them(make_mixture, loopback, damage):
    backend = writer(type(loopback), damage)
    mixture = make_mixture(backend, on_failure="repair")
    eager, compiled = Counter(), Counter()
    run = torch.compile(compiled, backend=mixture)
    for step in range(3):
        value = torch.randn(3, 4)
        torch.testing.assert_close(run(value), eager(value))
        torch.testing.assert_close(compiled.total, eager.total)
        assert compiled.calls == step + 1
    kinds = [event["kind"] for event in mixture.report().to_dict()["events"]]
    assert kinds == ["quarantine" if damage is break_down else "verify_failed", "repair"]
    assert backend.calls == 1


def test_a_wrong_buffer_is_named_after_the_outputs(make_mixture, loopback):
    mixture = make_mixture(writer(type(loopback), spoil_buffer))
    module = Counter()
    with pytest.raises(VerificationError, match="output 1 is off"):
        torch.compile(module, backend=mixture)(torch.randn(3, 4))
    assert module.calls == 0, "nothing has happened"
    assert not module.total.any()


@pytest.mark.parametrize("when", ["first_call", "always"])
def test_a_later_failure_loses_no_update(make_mixture, loopback, when):
    backend = writer(type(loopback))
    mixture = make_mixture(backend, on_failure="repair", verify={"when": when})
    eager, compiled = Counter(), Counter()
    run = torch.compile(compiled, backend=mixture)
    for step in range(6):
        if step == 3:
            backend.refuses = True
        value = torch.randn(3, 4)
        torch.testing.assert_close(run(value), eager(value))
        torch.testing.assert_close(compiled.total, eager.total)
        assert compiled.calls == step + 1
    assert backend.refused, "the failure was met"
    assert [event["kind"] for event in mixture.report().to_dict()["events"]] == ["quarantine", "repair"]


def test_an_executor_leaves_versions_to_torch(loopback):
    backend = writer(type(loopback))

    def function(total, value):
        COPY(total, total + value)
        return (value * 2,)

    region = trace_region(function, [torch.zeros(4), torch.ones(4)])
    policy = ExecutionPolicy("first_call", 3.0, strict=True)
    executor = RegionExecutor(region, RegionCode(backend, backend.compile(region)), policy, deque())
    total, value = torch.zeros(4), torch.ones(4)
    for step in range(3):
        before = total._version, value._version
        executor([total, value])
        assert (total._version, value._version) == before, "torch counts a graph's writes when it has run"
        torch.testing.assert_close(total, torch.full((4,), step + 1.0))


def test_stale_saved_tensors_are_found(make_mixture, loopback):
    mixture = make_mixture(writer(type(loopback)))
    module = torch.compile(Counter(), backend=mixture)
    weight = torch.randn(4, requires_grad=True)
    product = weight * module.total
    module(torch.randn(3, 4))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_other_backends_are_not_asked(loopback):
    region = trace_region(lambda total, value: COPY(total, value), [torch.zeros(4), torch.ones(4)])
    (view,) = region.views
    assert refused_by_traits(loopback, view) == Unsupported("effect", "aten.copy_.default writes into an input")
    assert refused_by_traits(writer(type(loopback)), view) is None


def test_random_and_other_mutating_ops_stay_refused(loopback):
    region = trace_region(
        lambda total, value: torch.ops.aten.add_.Tensor(total, value), [torch.zeros(4), torch.ones(4)]
    )
    assert isinstance(refused_by_traits(writer(type(loopback)), region.views[0]), Unsupported)


def test_written_inputs_of_a_region():
    def function(first, second, value):
        COPY(first.view(-1), value)
        return (second + value,)

    region = trace_region(function, [torch.zeros(2, 2), torch.zeros(4), torch.ones(4)])
    assert [region.inputs[place].name for place in region.written] == ["arg0_1"]


def views_of_one_storage(total, value):
    part, new = total.select(0, 0), total + value
    COPY(total, new)
    return (part * new,)


def test_a_region_that_writes_what_another_input_shares_is_marked():
    module, graph = trace_graph(views_of_one_storage, [torch.zeros(2, 4), torch.ones(2, 4)])
    (view,) = (node.name for node in graph.placed_nodes if node.op == "aten.select.int")
    rest = [node.name for node in graph.placed_nodes if node.name != view]
    apart = (PlannedRegion("r0", "eager", (view,)), PlannedRegion("r1", "writer", tuple(rest)))
    together = (PlannedRegion("r0", "writer", (view, *rest)),)
    marks = [
        [bound.entangled for bound in cut_regions(module, graph, Plan(graph.id, graph.phase, False, regions))]
        for regions in (apart, together)
    ]
    assert marks == [[False, True], [False]]


def test_what_writes_is_not_with_what_reads_another_input_of_that_storage(make_mixture, loopback):
    class NoViews(type(writer(type(loopback)))):
        name = "writer"

        def judge(self, view):
            refused = Unsupported("layout", "no views") if view.op == "aten.select.int" else None
            return refused or super().judge(view)

    backend = NoViews()
    mixture = make_mixture(backend)
    module, _ = trace_graph(views_of_one_storage, [torch.zeros(2, 4), torch.ones(2, 4)])
    run = mixture.compile_captured(module, "inference", {})
    total, other = torch.zeros(2, 4), torch.zeros(2, 4)
    for _ in range(2):
        mine, theirs = run([total, torch.ones(2, 4)]), views_of_one_storage(other, torch.ones(2, 4))
        torch.testing.assert_close(mine[0], theirs[0])
        torch.testing.assert_close(total, other)
    together = [{view.op for view in region.views} for region in backend.compiled]
    assert sorted(map(sorted, together)) == [["aten.add.Tensor", "aten.copy_.default"], ["aten.mul.Tensor"]]
    assert mixture.report().to_dict()["events"] == []


def test_writes_into_different_storages_need_no_order_among_them():
    def function(first, second, value):
        COPY(first, value)
        noise = torch.rand(4)
        COPY(second, first + noise)
        return (noise,)

    _, graph = trace_graph(function, [torch.zeros(4), torch.zeros(4), torch.ones(4)])
    writes = [node.name for node in graph.nodes if node.op == "aten.copy_.default"]
    assert tuple(writes) not in graph.effects
    (noise,) = (node.name for node in graph.nodes if node.op.startswith("aten.rand"))
    assert (writes[0], noise) not in graph.effects
    assert (noise, writes[1]) not in graph.effects
    reader = next(node.name for node in graph.nodes if node.op == "aten.add.Tensor")
    assert (writes[0], reader) in graph.effects, "who reads the storage afterwards waits for the write"


def test_eagers_own_counting_is_taken_back():
    region = trace_region(lambda total, value: COPY(total, value), [torch.zeros(4), torch.ones(4)])
    backend = EagerBackend()
    policy = ExecutionPolicy("first_call", 3.0, strict=True)
    executor = RegionExecutor(region, RegionCode(backend, backend.compile(region)), policy, deque())
    total = torch.zeros(4)
    executor([total, torch.ones(4)])
    assert total._version == 0
    executor.unguarded([total, torch.ones(4)])
    assert total._version == 0
