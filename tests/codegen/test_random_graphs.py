"""Random functions: what every step of the code generator makes of them computes what eager does."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from random_functions import Input, RandomFunction, random_functions
from tiers import draws
from torch.fx.node import map_aggregate

from mixbackend.backends.codegen.backend import CodegenBackend
from mixbackend.backends.codegen.interpret.program import interpret_program
from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.ir.check import check_program, check_stages
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.backends.codegen.schedule.schedule import schedule
from mixbackend.backends.codegen.targets.target import TargetTraits
from mixbackend.contracts import ErrorBudget, Region, Supported, Unsupported, hint_of
from mixbackend.contracts.numerics import Deviation, find_deviation
from mixbackend.execute.verify import eager_result, reference_result
from mixbackend.graph.trace import trace_region

NIGHTLY = os.environ.get("MIXBACKEND_NIGHTLY") == "1"
BACKEND = CodegenBackend()
BUDGET = ErrorBudget(factor=4.0, floor=64.0)
TRAITS = TargetTraits(
    device_type="cpu",
    vector_bytes=32,
    scratch_bytes=1 << 15,
    parallel_width=4,
    dtypes=frozenset({*(torch.float16, torch.bfloat16, torch.float32, torch.float64), *(torch.int64, torch.bool)}),
)


def examples(by_day: int, by_night: int) -> Any:
    """Settings for a property: examples always the same, by tier, and many new ones with ``MIXBACKEND_NIGHTLY=1``."""
    return settings(
        max_examples=by_night * 20 if NIGHTLY else draws(by_day, by_night),
        derandomize=not NIGHTLY,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


def region_of(drawn: RandomFunction, dynamic: bool = False) -> tuple[Region, list[Any]]:
    """A region, and what it is called with."""
    inputs = drawn.make_inputs()
    region = trace_region(drawn.function, inputs, dynamic=dynamic)
    places = [re.fullmatch(r"arg(\d+)_\d+", item.name) for item in region.inputs]
    pairs = zip(region.inputs, places, strict=True)
    return region, [inputs[int(place[1])] if place else hint_of(item.meta) for item, place in pairs]


class Noisy(torch.fx.Interpreter):
    """Double precision, where every op makes a relative error as large as rounding to its own type."""

    def __init__(self, region: Region, seed: int) -> None:
        super().__init__(region.graph_module)
        self._generator = torch.Generator().manual_seed(seed)

    def run_node(self, node: torch.fx.Node) -> Any:
        result = super().run_node(node)
        own = node.meta.get("val")
        is_result = node.op == "call_function" and isinstance(result, torch.Tensor) and isinstance(own, torch.Tensor)
        if not is_result or not own.dtype.is_floating_point:
            return result
        error = torch.rand(result.shape, generator=self._generator, dtype=torch.float64) * 2 - 1
        return result * (1 + error * torch.finfo(own.dtype).eps)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        result = super().call_function(target, map_aggregate(args, _widened), map_aggregate(kwargs, _widened))
        return map_aggregate(result, _widened)


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


class Oracle:
    """Eager's results, those in double precision, and how far rounding alone can move them."""

    def __init__(self, region: Region, inputs: Sequence[Any]) -> None:
        self._region = region
        self._inputs = inputs
        self._eager = eager_result(region, inputs)
        self._exact = reference_result(region, inputs, self._eager)

    def expect(self, step: str, results: Sequence[torch.Tensor]) -> None:
        """Hold the results of one step against eager."""
        assert len(results) == len(self._eager)
        for index, (mine, eager, exact) in enumerate(zip(results, self._eager, self._exact, strict=True)):
            deviation = find_deviation(index, mine, eager, exact, BUDGET)
            if deviation is None or self._is_rounding(deviation, index):
                continue
            raise AssertionError(f"{step}: {deviation}\nmine: {mine}\neager: {eager}")
        for meta, mine in zip(self._region.outputs, results, strict=True):
            if not self._region.dynamic and mine.numel() > 0:
                pairs = zip(mine.shape, mine.stride(), meta.meta.stride, strict=True)
                assert all(size == 1 or ours == theirs for size, ours, theirs in pairs), (
                    f"{step}: strides of {meta.name}"
                )

    def _is_rounding(self, deviation: Deviation, index: int) -> bool:
        """Whether errors of rounding inside the function move the result as far (it cancels, or is steep)."""
        if deviation.measure not in ("rms", "max"):
            return False
        exact, spread = self._exact[index].double(), 0.0
        for seed in range(4):
            with torch.no_grad():
                error = (Noisy(self._region, seed).run(*map(_widened, self._inputs))[index] - exact).abs()
            error = error[error.isfinite()]
            spread = max(spread, float(error.max() if deviation.measure == "max" else error.square().mean().sqrt()))
        return deviation.error <= BUDGET.factor * spread


def claimed_or_reject(region: Region) -> None:
    """Every op is claimed, unless its value is that of a fold of nothing or hangs on a size that nobody knows."""
    for view in region.views:
        verdict = BACKEND.judge(view)
        if region.dynamic and isinstance(verdict, Unsupported) and verdict.code == "dynamic-shape":
            reject()
        if isinstance(verdict, Unsupported) and "is empty: folding it gives no value" in verdict.detail:
            reject()
        assert verdict == Supported(), f"{view.node}: {verdict}"


def all_steps(drawn: RandomFunction, dynamic: bool) -> None:
    """Lower, check, schedule and interpret a function; hold every step against eager."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        region, inputs = region_of(drawn, dynamic)
        oracle = Oracle(region, inputs)
        claimed_or_reject(region)
        graph = lower_region(region)
        check_stages(graph)
        oracle.expect("stages", interpret_stages(graph, inputs))
        program = schedule(graph, TRAITS)
        check_program(program)
        oracle.expect("program", interpret_program(program, inputs))


@given(drawn=random_functions())
@examples(40, 200)
def test_stages_and_kernels_of_random_functions_compute_what_eager_does(drawn: RandomFunction) -> None:
    all_steps(drawn, dynamic=False)


@given(drawn=random_functions(steps=6, zero_sizes=False))
@examples(12, 60)
def test_the_same_with_symbolic_sizes(drawn: RandomFunction) -> None:
    all_steps(drawn, dynamic=True)


@given(drawn=random_functions(), dynamic=st.booleans())
@examples(5, 16)
def test_compiled_random_functions_compute_what_eager_does(drawn: RandomFunction, dynamic: bool) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        region, inputs = region_of(drawn, dynamic)
        claimed_or_reject(region)
        compiled = BACKEND.compile(region)
        before = [item.clone() if isinstance(item, torch.Tensor) else item for item in inputs]
        results = compiled.run(inputs)
        oracle = Oracle(region, inputs)
        oracle.expect("compiled", results)
        oracle.expect("compiled, again", compiled.run(inputs))
        for old, new in zip(before, inputs, strict=True):
            if isinstance(new, torch.Tensor):
                torch.testing.assert_close(new, old, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("change", ["value", "stride", "infinity", "position"])
def test_the_oracle_refuses_what_is_wrong(change: str) -> None:
    lines = ("v1 = v0.exp() + v0 / 3", "v2 = v0.argmax(1)", "v3 = v1.t()")
    drawn = RandomFunction((Input((5, 7), torch.float32, "contiguous", False, 1),), lines, ("v3", "v2"))
    region, inputs = region_of(drawn)
    positions, values = (item.clone() for item in eager_result(region, inputs))
    Oracle(region, inputs).expect("eager", [positions, values])
    if change == "value":
        values[3, 3] *= 1.001
    elif change == "stride":
        values = values.contiguous()
    elif change == "infinity":
        values[0, 0] = float("inf")
    else:
        positions[2] += 1
    with pytest.raises(AssertionError, match="changed: "):
        Oracle(region, inputs).expect("changed", [positions, values])
