"""The states of a region's executor: what becomes of its calls, and that what is found belongs to what was called."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import BoundRun, CompiledRegion, Region, TensorMeta
from mixbackend.execute.answers import ExecutionPolicy
from mixbackend.execute.faults import Failed, Faults
from mixbackend.execute.region_code import RegionCode
from mixbackend.execute.region_executor import RegionExecutor, State
from mixbackend.execute.timed_calls import TIMED_CALLS
from mixbackend.graph.trace import trace_region

INPUT = torch.tensor([1.0, 2.0, 3.0])


class Foreign(EagerBackend):
    """Not the reference, and no promises."""

    name = "foreign"

    def traits(self):
        return replace(super().traits(), reference=False)


def right(inputs: Sequence[Any]) -> list[torch.Tensor]:
    return [inputs[0].sin()]


def wrong(inputs: Sequence[Any]) -> list[torch.Tensor]:
    return [inputs[0].sin() + 1]


def broken(inputs: Sequence[Any]) -> list[torch.Tensor]:
    raise RuntimeError("device lost")


def a_region() -> Region:
    return trace_region(lambda value: (value.sin(),), [INPUT])


def executor_of(
    run: Callable[[Sequence[Any]], Sequence[Any]], verify: Any = "first_call", bind: Any = None
) -> tuple[RegionExecutor, Faults]:
    faults: Faults = deque()
    code = RegionCode(Foreign(), CompiledRegion(run, bind=bind))
    return RegionExecutor(a_region(), code, ExecutionPolicy(verify, 3.0, strict=False), faults), faults


def call(executor: RegionExecutor) -> None:
    torch.testing.assert_close(executor([INPUT])[0], INPUT.sin())


@pytest.mark.parametrize(
    ("verify", "states"),
    [
        ("first_call", [State.CHECKED] + TIMED_CALLS * [State.TIMED] + [State.SETTLED]),
        ("off", TIMED_CALLS * [State.TIMED] + [State.SETTLED]),
        ("always", (TIMED_CALLS + 2) * [State.WATCHED]),
        ("sampled", (TIMED_CALLS + 2) * [State.WATCHED]),
    ],
)
def test_right_code_is_checked_timed_and_left_alone(verify, states):
    executor, faults = executor_of(right, verify)
    for state in states:
        assert executor.state is state
        call(executor)
    assert not faults
    executor.time_again()
    assert executor.state is (State.TIMED if states[-1] is State.SETTLED else State.WATCHED)


@pytest.mark.parametrize("run", [wrong, broken])
def test_eager_answers_for_code_that_failed_and_it_is_said_once(run):
    executor, faults = executor_of(run)
    for _ in range(3):
        call(executor)
        assert executor.state is State.LEFT
    (fault,) = faults
    assert isinstance(fault, Failed) and fault.region is executor.region and fault.is_news


def test_all_who_share_code_leave_it_and_each_says_so():
    faults: Faults = deque()
    code = RegionCode(Foreign(), CompiledRegion(wrong))
    policy = ExecutionPolicy("first_call", 3.0, strict=False)
    first, second = (RegionExecutor(a_region(), code, policy, faults) for _ in range(2))
    call(first)
    assert (first.state, second.state) == (State.LEFT, State.RETIRED)
    call(second)
    assert second.state is State.LEFT
    assert [fault.is_news for fault in faults if isinstance(fault, Failed)] == [True, False]


def test_what_was_found_of_a_binding_says_nothing_of_the_next():
    """Constants are bound anew while a checked call of those before is under way."""
    bindings = []

    def bind(constants: Sequence[Any]) -> BoundRun:
        bindings.append(constants)
        return BoundRun(wrong)

    def rebinding(inputs: Sequence[Any]) -> list[torch.Tensor]:
        if not bindings:
            executor.bind([INPUT])
        return right(inputs)

    executor, faults = executor_of(rebinding, bind=bind)
    call(executor)
    assert bindings and executor.state is State.CHECKED
    call(executor)
    assert executor.state is State.LEFT and len(faults) == 1


def test_eager_runs_what_waits_for_constants():
    executor, faults = executor_of(wrong, "off", bind=lambda constants: BoundRun(right))
    executor.run_eager()
    for _ in range(2):
        call(executor)
    assert executor.state is State.UNBOUND and executor.measured_s is None
    executor.bind([INPUT])
    call(executor)
    assert executor.state is State.TIMED and executor.measured_s is not None and not faults


LAYOUTS = {
    "rows in steps": lambda value: value.sin()[::2],
    "columns cut off": lambda value: value.sin()[:, 1:],
    "half of the columns": lambda value: value.sin()[:, : value.shape[1] // 2],
    "turned": lambda value: value.sin().t(),
    "expanded": lambda value: value.sin()[:, :1].expand(-1, 3),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_outputs_of_symbolic_sizes_lie_as_eagers_do(name):
    """Steps between elements follow from the sizes of each call, also where the first call's layout has no gaps."""
    function = LAYOUTS[name]
    region = trace_region(lambda value: (function(value),), [torch.randn(6, 10)], dynamic=True)
    place = next(place for place, item in enumerate(region.inputs) if isinstance(item.meta, TensorMeta))
    code = RegionCode(Foreign(), CompiledRegion(lambda inputs: [function(inputs[place]).contiguous()]))
    executor = RegionExecutor(region, code, ExecutionPolicy("first_call", 3.0, strict=False), deque())
    for sizes in ((6, 10), (8, 6), (6, 14)):
        value = torch.randn(sizes)
        inputs = [value if index == place else _size(item.meta, sizes) for index, item in enumerate(region.inputs)]
        result = executor(inputs)[0]
        assert result.stride() == function(value).stride()
        torch.testing.assert_close(result, function(value))


def _size(meta: Any, sizes: tuple[int, int]) -> int:
    return {6: sizes[0], 10: sizes[1]}[meta.hint]
