"""Blocks of models run on a backend as they would in a model, whatever the backend does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from mixbackend import registry
from mixbackend.calibrate.block_runs import run_blocks
from mixbackend.calibrate.blocks import Block, accelerator_blocks, standard_blocks
from mixbackend.contracts import Backend, CompiledRegion, InputRole, Region
from mixbackend.cost.priors import prior_rates
from mixbackend.partitioner.roofline import RooflineCostModel

from .conftest import DEVICE, Clock, KnownBackend

CPU = torch.device("cpu")
GELU, PRODUCT = "aten.gelu.default", "aten.addmm.default"
SMALL = Block("small", standard_blocks(1)[0].function, ((4, 8), (16, 8), (16,), (8, 16), (8,)), divided=True)


def eager() -> Backend:
    return next(item for item in registry.resolve(("eager",), frozenset()) if item.name == "eager")


def run(backend: KnownBackend, blocks: Sequence[Block] = (SMALL,), budget_s: float = 60.0) -> Any:
    """Timed by the backend's own clock, which stands still while the reference runs."""
    both = {item.name: prior_rates(item, DEVICE) for item in (backend, eager())}
    costs = RooflineCostModel(DEVICE, both)
    return run_blocks(blocks, backend, eager(), costs, CPU, budget_s, clock=backend.clock)


def names_of(runs: Sequence[Any]) -> list[str]:
    return [item.name for item in runs]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("block", standard_blocks(1), ids=lambda block: block.name)
def test_blocks_compute_something(block: Block) -> None:
    values = block.inputs(CPU)
    made = block.function(*values)
    result = made[0] if isinstance(made, tuple) else made
    assert result.shape == values[0].shape and torch.isfinite(result).all()
    assert result.stride() == values[0].stride() or not block.channels_last
    again = block.inputs(CPU)
    assert all(map(torch.equal, values, again))


def test_blocks_are_what_their_names_say() -> None:
    for block in standard_blocks(1):
        assert block.channels_last == block.name.endswith("/channels_last")
        assert block.live == (block.name.endswith("/live") or "/gradients" in block.name)
    assert sum(block.channels_last for block in standard_blocks(1)) == 3


def test_gradients_of_layers_run_too() -> None:
    block = next(item for item in accelerator_blocks() if "gradients" in item.name)
    small = replace(block, shapes=((16, 8), (32, 8), (8, 32)), dtype="float32")
    value, first, second = small.inputs(CPU)
    inner = value @ second
    results = small.function(value, first, second)
    expected = (inner @ first + value, value.t() @ torch.nn.functional.gelu(inner), value.sum(0), inner.t() @ value)
    for result, right in zip(results, (*expected, inner.sum(0)), strict=True):
        torch.testing.assert_close(result, right)
    runs, notes = run(KnownBackend(), (small,))
    assert names_of(runs) == [small.name] and not notes


def test_random_stream_is_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    run(KnownBackend())
    assert torch.equal(torch.rand(2), expected)


def test_a_backend_that_takes_all_runs_whole_and_divided() -> None:
    runs, notes = run(KnownBackend())
    assert names_of(runs) == ["small", "small/divided"] and not notes
    whole, divided = runs
    assert len(whole.plan.regions) == 1
    assert [item.backend for item in divided.plan.regions].count("known") == 2
    # The same work, and one more region to enter.
    assert divided.seconds > whole.seconds > 0.0 or len(divided.plan.regions) == 4


def test_the_reference_fills_in() -> None:
    runs, _ = run(KnownBackend(refused=frozenset({GELU})))
    owners = {item.backend for item in runs[0].plan.regions}
    assert owners == {"known", "eager"}


def test_nothing_runs_where_the_backend_takes_nothing() -> None:
    refused = frozenset({GELU, PRODUCT, "aten.add.Tensor", "aten.t.default"})
    assert run(KnownBackend(refused=refused)) == ([], [])


def test_the_reference_alone_is_not_divided() -> None:
    both = {"eager": prior_rates(eager(), DEVICE)}
    reference = eager()
    costs = RooflineCostModel(DEVICE, both)
    runs, notes = run_blocks([SMALL], reference, reference, costs, CPU, 60.0, clock=Clock())
    assert names_of(runs) == ["small"] and not notes


def test_what_does_not_compile_is_noted() -> None:
    class Broken(KnownBackend):
        def compile(self, region: Region) -> CompiledRegion:
            raise RuntimeError("no such kernel")

    runs, notes = run(Broken())
    assert runs == [] and notes == ["block small: failed, RuntimeError: ['no such kernel']"]


def test_compiling_stops_when_its_time_is_spent() -> None:
    runs, notes = run(KnownBackend(), budget_s=-1.0)
    assert runs == [] and notes == ["block small: not run, -1 s of compiling are spent"]


def test_live_blocks_bind_nothing() -> None:
    """What changes from call to call may not be packed ahead."""
    roles: list[set[Any]] = []
    for live in (False, True):
        backend = KnownBackend()
        run(backend, (replace(SMALL, live=live, divided=False),))
        roles.append({item.role for region in backend.compiled for item in region.inputs})
    assert InputRole.CONSTANT in roles[0] and InputRole.PARAMETER not in roles[0]
    assert InputRole.PARAMETER in roles[1] and InputRole.CONSTANT not in roles[1]
