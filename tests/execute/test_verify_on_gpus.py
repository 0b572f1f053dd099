"""What counts as right on a GPU: TF32 where it is allowed, states of attention, regions too large for float64."""

from __future__ import annotations

from collections import deque

import pytest
import torch

from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import CompiledRegion, Condition, ErrorBudget, SymbolicSize, TensorMeta
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.execute import verify
from mixbackend.execute.answers import ExecutionPolicy
from mixbackend.execute.reference import WideInterpreter
from mixbackend.execute.region_code import RegionCode
from mixbackend.execute.region_executor import RegionExecutor
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten


def _fake(*shapes, dtype=torch.float32):
    mode = fresh_fake_mode()
    with mode:
        return [torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes]


def test_products_may_round_to_tf32_if_torch_is_told_so(precision):
    region = trace_region(aten.mm, _fake((4, 4), (4, 4)))
    precision("highest")
    assert not verify.may_round_to_tf32(region)
    precision("high")
    assert verify.may_round_to_tf32(region)
    assert not verify.may_round_to_tf32(trace_region(aten.mm, _fake((4, 4), (4, 4), dtype=torch.float16)))
    assert not verify.may_round_to_tf32(trace_region(aten.mm, [torch.ones(4, 4), torch.ones(4, 4)]))
    assert not verify.may_round_to_tf32(trace_region(aten.relu, _fake((4, 4))))


@pytest.mark.parametrize("allowed", [True, False])
def test_convolutions_have_a_switch_of_their_own(allowed):
    def convolve(image, weight):
        return aten.convolution(image, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)

    with torch.backends.cudnn.flags(enabled=True, allow_tf32=allowed):
        assert verify.may_round_to_tf32(trace_region(convolve, _fake((1, 4, 8, 8), (4, 4, 3, 3)))) is allowed


def test_states_of_attention_are_not_compared(monkeypatch):
    def attend(query, key, value):
        made = aten._scaled_dot_product_flash_attention(query, key, value)
        return made[0], made[6]

    inputs = _fake(*[(1, 2, 16, 8)] * 3, dtype=torch.float16)
    region = trace_region(attend, inputs)
    values = [torch.ones(1, 2, 16, 8, dtype=torch.float16)] * 3
    result, state = torch.ones(4), torch.zeros(2, dtype=torch.int64)
    monkeypatch.setattr(verify, "eager_result", lambda *_: (result, state))
    monkeypatch.setattr(verify, "wide_results", lambda *_: (result, state))
    assert verify.check_region(region, values, [result, state + 5], ErrorBudget()).right
    assert verify.check_region(region, values, [result + 1, state], ErrorBudget()).deviation.output == 0


def test_without_float64_the_coarsest_type_of_a_region_says_how_near_is_near(monkeypatch):
    def function(left, right):
        return aten.mm(left.bfloat16(), right.bfloat16()).float()

    inputs = [torch.randn(64, 64), torch.randn(64, 64)]
    region = trace_region(function, inputs)
    exact = inputs[0].double() @ inputs[1].double()
    rounded = exact.bfloat16().float()
    monkeypatch.setattr(verify, "BYTE_CAP", 64 * 64 * 4 * 4)
    assert verify.check_region(region, inputs, [rounded], ErrorBudget()).right
    assert verify.check_region(region, inputs, [rounded * 1.5], ErrorBudget()).deviation is not None
    plain = trace_region(aten.mm, inputs)
    assert verify.check_region(plain, inputs, [rounded], ErrorBudget()).deviation is not None


def test_preconditions_on_sizes_of_several_symbols():
    inputs = [torch.randn(4, 6)]
    region = trace_region(lambda value: aten.sigmoid(value), inputs, dynamic=True)
    meta = next(item.meta for item in region.inputs if isinstance(item.meta, TensorMeta))
    rows, columns = (size.expression for size in meta.shape)
    small = Condition(SymbolicSize(100 - rows * columns), "at_least", 0)
    ran = []

    def run(values):
        ran.append(1)
        return EagerBackend().compile(region).run(values)

    policy = ExecutionPolicy("off", 3.0, strict=True)
    compiled = CompiledRegion(run, preconditions=(small,))
    executor = RegionExecutor(region, RegionCode(EagerBackend(), compiled), policy, deque())
    for shape, taken in (((5, 20), True), ((5, 21), False), ((2, 2), True)):
        value = torch.randn(shape)
        sizes = iter(shape)
        values = [value if isinstance(item.meta, TensorMeta) else next(sizes) for item in region.inputs]
        ran.clear()
        torch.testing.assert_close(executor(values)[0], value.sigmoid())
        assert bool(ran) is taken


def test_eager_and_the_reference_draw_what_the_region_drew(monkeypatch):
    def drop(x):
        return aten.native_dropout(x, 0.5, True)[0]

    region = trace_region(drop, _fake((4, 8)))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda gpu: torch.tensor([gpu]))
    states = verify.random_states(region)
    assert [gpu for gpu, _ in states] == [0]
    order = []
    monkeypatch.setattr(torch.random, "fork_rng", lambda gpus: torch.no_grad())
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda gpu: 0)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, gpu: order.append("state"))
    result = torch.ones(4, 8)
    monkeypatch.setattr(verify, "eager_result", lambda *_: order.append("eager") or (result,))
    monkeypatch.setattr(verify, "wide_results", lambda *_: order.append("reference") or (result,))
    assert verify.check_region(region, [torch.ones(4, 8)], [result], ErrorBudget(), states=states).right
    assert order == ["state", "eager", "state", "reference"]


def test_regions_that_draw_nothing_have_no_states():
    assert not verify.random_states(trace_region(aten.relu, _fake((4, 4))))
    assert not verify.random_states(trace_region(aten.relu, [torch.ones(4, 8)]))


def test_the_reference_of_what_is_random_is_drawn_in_its_own_type():
    x = torch.ones(4, 8)
    region = trace_region(aten.rand_like, [x])
    torch.manual_seed(0)
    eager = aten.rand_like(x)
    torch.manual_seed(0)
    (made,) = verify.reference_result(region, [x], (eager,))
    assert made.dtype == torch.float64 and torch.equal(made, eager.double())


@pytest.mark.parametrize(("grown", "given_back"), [(100 << 20, 0), (300 << 20, 1)])
def test_memory_that_only_verifying_took_is_given_back(grown, given_back, monkeypatch):
    region = trace_region(aten.relu, [torch.ones(4)])
    reserved = iter((1 << 30, (1 << 30) + grown))
    calls = []
    state = torch.zeros(1)
    monkeypatch.setattr(torch.random, "fork_rng", lambda gpus: torch.no_grad())
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda gpu: state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, gpu: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda gpu: next(reserved))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(1))
    # It draws on a GPU, and so works on one.
    assert verify.check_region(region, [torch.ones(4)], [torch.ones(4)], ErrorBudget(), states=[(0, state)]).right
    assert len(calls) == given_back


def test_float64_inputs_live_until_they_were_read_last():
    """While the last op of a chain runs, only what it reads is there in float64."""

    def chain(x):
        return aten.sum(aten.sigmoid(aten.relu(x)))

    region = trace_region(chain, [torch.ones(64)])
    interpreter = WideInterpreter(region)
    sizes = []
    inner = interpreter.call_function

    def watched(*arguments):
        sizes.append(sum(value.numel() for value in interpreter.env.values() if value.dtype == torch.float64))
        return inner(*arguments)

    interpreter.call_function = watched
    interpreter.run(torch.ones(64))
    assert sizes == [64, 64, 64]
