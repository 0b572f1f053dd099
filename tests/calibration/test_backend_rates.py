"""Probing gives back the speed of a backend whose speed is known, and survives backends that misbehave."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
import torch

from mixbackend.calibrate.backend_rates import measure_rates
from mixbackend.contracts import OP_CLASSES, BoundRun, CompiledRegion, DeviceModel, Probe, Traits
from mixbackend.contracts import probes as probes_module
from mixbackend.contracts.probes import standard_probes
from mixbackend.contracts.rate_rows import rate_row
from mixbackend.cost.priors import prior_rates
from mixbackend.cost.records import rates_record, read_unfinished, unfinished_record
from mixbackend.cost.unfinished import Fixed, Unfinished

from .conftest import (
    CROSSING_S,
    DEVICE,
    ENTRY_S,
    FLOPS_PER_S,
    MEMORY_SCALE,
    OVERHEAD_S,
    Clock,
    KnownBackend,
)

CLASSES = {probe.op_class for probe in standard_probes(DEVICE)}


def measure(backend: KnownBackend, **options: Any) -> Any:
    return measure_rates(backend, DEVICE, prior_rates(backend, DEVICE), clock=backend.clock, **options)


def test_known_speeds_are_found(backend: KnownBackend) -> None:
    done = measure(backend)
    rates = done.rates
    assert done.settled
    assert done.notes == ()
    assert rates.provenance == "probed"
    assert rates.entry_s == pytest.approx(ENTRY_S, rel=0.05)
    assert rates.crossing_s == pytest.approx(CROSSING_S, rel=0.05)
    assert rates.memory_scale == pytest.approx(MEMORY_SCALE, rel=0.05)
    for op_class in CLASSES:
        rate = rates.rate(op_class, "float32")
        assert rate is not None
        assert rate.provenance == "probed"
        assert rate.overhead_s == pytest.approx(OVERHEAD_S, rel=0.05), op_class


LIVE_ROWS = (
    "matmul/turned",
    "convolution/gradient",
    "convolution/channels_last/gradient",
    "matmul",
    "convolution",
    "convolution/channels_last",
    "convolution/grouped",
    "convolution/grouped/channels_last",
    "attention",
    "pointwise",
)
CONSTANT_ROWS = (
    "matmul/constant",
    "convolution/constant",
    "convolution/channels_last/constant",
    "convolution/grouped/constant",
    "convolution/grouped/channels_last/constant",
)


def test_rates_of_arithmetic(backend: KnownBackend) -> None:
    rates = measure(backend).rates
    probed = {row: rate for row, dtype, rate in rates.rates if dtype == "float32" and rate.provenance == "probed"}
    assert set(LIVE_ROWS) <= set(probed)
    assert not set(CONSTANT_ROWS) & set(probed)
    for row in LIVE_ROWS:
        assert probed[row].flops_per_s == pytest.approx(FLOPS_PER_S, rel=0.05), row


KINDS = {
    "convolution": 0.0,
    "convolution/channels_last": 3e-6,
    "convolution/grouped": 4e-5,
    "convolution/grouped/channels_last": 2e-5,
    "convolution/gradient": 6e-5,
    "convolution/channels_last/gradient": 5e-5,
}


def test_kinds_of_convolutions_have_overheads_of_their_own(clock: Clock) -> None:
    class Uneven(KnownBackend):
        def seconds(self, region: Any, flops_per_s: float = FLOPS_PER_S) -> float:
            more = sum(KINDS.get(rate_row(view), 0.0) for view in region.views)
            return super().seconds(region, flops_per_s) + more

    found = measure(Uneven(clock=clock)).rates
    for row, more in KINDS.items():
        assert found.rate(row, "float32").overhead_s == pytest.approx(OVERHEAD_S + more, rel=0.05), row
        assert found.rate(row, "float32").flops_per_s == pytest.approx(FLOPS_PER_S, rel=0.05), row


class Binding(KnownBackend):
    """Its products run at twice the speed once it knows their weights."""

    bound: ClassVar[list[list[int]]] = []

    def traits(self) -> Traits:
        return Traits(weights="refit")

    def compile(self, region: Any) -> CompiledRegion:
        compiled = super().compile(region)

        def bind(constants: Any) -> BoundRun:
            self.bound.append([place for place, value in enumerate(constants) if value is not None])
            saved = self.seconds(region) - self.seconds(region, 2 * FLOPS_PER_S)

            def run(inputs: Any) -> Any:
                results = compiled.run(inputs)
                self.clock.advance(-saved)
                return results

            return BoundRun(run)

        return CompiledRegion(compiled.run, bind)


def test_known_weights_tell_the_overhead_of_a_kind_as_well(clock: Clock) -> None:
    class Uneven(Binding):
        def seconds(self, region: Any, flops_per_s: float = FLOPS_PER_S) -> float:
            grouped = sum(rate_row(view).startswith("convolution/grouped") for view in region.views)
            return super().seconds(region, flops_per_s) + 3e-5 * grouped

    found = measure(Uneven(clock=clock)).rates
    for row in ("convolution/grouped", "convolution/grouped/constant"):
        assert found.rate(row, "float32").overhead_s == pytest.approx(OVERHEAD_S + 3e-5, rel=0.05), row
    assert found.rate("convolution/constant", "float32").overhead_s == pytest.approx(OVERHEAD_S, rel=0.05)


def test_bound_code_is_timed_where_constants_are_known(clock: Clock) -> None:
    rates = measure(Binding(clock=clock)).rates
    for row in LIVE_ROWS:
        assert rates.rate(row, "float32").flops_per_s == pytest.approx(FLOPS_PER_S, rel=0.05), row
    for row in CONSTANT_ROWS:
        found = rates.rate(row, "float32").flops_per_s
        # Depthwise convolutions at this speed take what their images take, so that no more is known than a bound.
        hidden = "grouped" in row
        assert found > FLOPS_PER_S if hidden else found == pytest.approx(2 * FLOPS_PER_S, rel=0.05), row
    assert [0, 1] in Binding.bound
    assert [1, 2, 4, 5, 7, 8] in Binding.bound


def test_layouts_are_no_rows_of_backends_that_know_only_one(clock: Clock) -> None:
    class RowMajor(KnownBackend):
        def traits(self) -> Traits:
            return Traits(row_major=True)

    rows = {row for row, _, rate in measure(RowMajor(clock=clock)).rates.rates if rate.provenance == "probed"}
    assert "convolution/grouped" in rows
    assert not any("channels_last" in row for row in rows)


def test_half_precision_is_probed_where_the_processor_has_it(backend: KnownBackend, monkeypatch: Any) -> None:
    monkeypatch.setattr(probes_module, "has_fast_bfloat16", lambda: True)
    with_halves = {probe.dtype for probe in standard_probes(DEVICE)}
    monkeypatch.setattr(probes_module, "has_fast_bfloat16", lambda: False)
    assert with_halves - {probe.dtype for probe in standard_probes(DEVICE)} == {"bfloat16"}


@pytest.mark.nightly
def test_it_is_deterministic() -> None:
    assert measure(KnownBackend()).rates == measure(KnownBackend()).rates


def test_refused_and_broken_probes_keep_the_prior(clock: Clock) -> None:
    backend = KnownBackend(
        clock=clock, refused=frozenset({"aten._softmax.default"}), broken=frozenset({"aten.addmm.default"})
    )
    done = measure(backend)
    prior = prior_rates(backend, DEVICE)
    assert done.rates.rate("softmax", "float32") == prior.rate("softmax", "float32")
    assert done.rates.rate("matmul", "float32") == prior.rate("matmul", "float32")
    assert done.rates.rate("pointwise", "float32").provenance == "probed"
    assert not any("aten._softmax.default" in {view.op for view in region.views} for region in backend.compiled)
    assert len(done.notes) == 2
    assert any("softmax" in note and "declined not this one" in note for note in done.notes)
    assert any("matmul" in note and "RuntimeError" in note and "long story" not in note for note in done.notes)


def test_a_backend_that_can_do_nothing_keeps_its_prior(clock: Clock) -> None:
    class Hopeless(KnownBackend):
        def judge(self, view: Any) -> Any:
            raise ValueError("judging is broken")

        def probes(self, device: DeviceModel) -> tuple[Probe, ...]:
            raise ValueError("so are the probes")

    backend = Hopeless(clock=clock)
    done = measure(backend)
    assert done.rates == prior_rates(backend, DEVICE)
    assert any("so are the probes" in note for note in done.notes)


@pytest.mark.parametrize("fails_after", [0, 1])
def test_a_backend_that_fails_at_run_time_keeps_its_prior(clock: Clock, fails_after: int) -> None:
    class Fading(KnownBackend):
        def compile(self, region: Any) -> CompiledRegion:
            compiled, calls = super().compile(region), [0]

            def run(inputs: Any) -> Any:
                calls[0] += 1
                if calls[0] > fails_after:
                    raise OSError("library went away")
                return compiled.run(inputs)

            return CompiledRegion(run)

    backend = Fading(clock=clock)
    done = measure(backend)
    assert done.rates == prior_rates(backend, DEVICE)
    assert any("library went away" in note for note in done.notes)


def test_wrong_shapes_are_not_timed(clock: Clock) -> None:
    class Wrong(KnownBackend):
        def compile(self, region: Any) -> CompiledRegion:
            return CompiledRegion(lambda inputs: [torch.zeros(1) for _ in region.outputs])

    done = measure(Wrong(clock=clock))
    assert done.rates.provenance == "prior"
    assert all("returned shapes" in note for note in done.notes)


STRUCTURAL = 15
"""Probes that every backend gets."""


def test_compiling_stops_when_its_time_is_spent(clock: Clock) -> None:
    backend = KnownBackend(clock=clock, compile_s=1.0)
    done = measure(backend, compile_budget_s=STRUCTURAL + 0.5)
    assert len(backend.compiled) == STRUCTURAL + 1
    assert done.compile_s == pytest.approx(STRUCTURAL + 1.0, abs=0.1)
    live = [probe for probe in standard_probes(DEVICE) if not probe.constants]
    assert sum("are spent" in note for note in done.notes) == len(live) - 1
    assert done.rates.rate("matmul", "float32").provenance == "probed"
    assert done.rates.rate("scatter", "float32").provenance == "prior"


def test_disturbed_timings_keep_the_prior(clock: Clock) -> None:
    class Disturbed(KnownBackend):
        def compile(self, region: Any) -> CompiledRegion:
            compiled, calls = super().compile(region), [1]

            def run(inputs: Any) -> Any:
                calls[0] += 1
                clock.advance(2.0 ** (calls[0] % 40) * 1e-5)
                return compiled.run(inputs)

            return CompiledRegion(run)

    done = measure(Disturbed(clock=clock))
    assert not done.settled
    assert any("timings disagree" in note for note in done.notes)


def test_weights_are_given_as_parameters(backend: KnownBackend) -> None:
    measure(backend)
    roles = {view.role.value for region in backend.compiled for view in region.inputs}
    assert roles == {"activation", "parameter"}


def test_random_stream_and_defaults_are_left_alone(backend: KnownBackend) -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        done = measure(backend)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), state)
    assert done.notes == ()
    assert {view.meta.dtype for region in backend.compiled for view in region.outputs} == {torch.float32}


def test_probing_works_in_the_middle_of_a_compilation(clock: Clock) -> None:
    found: list[Any] = []

    def compiler(graph_module: torch.fx.GraphModule, inputs: Any) -> Any:
        def inner(graph: torch.fx.GraphModule, fakes: Any) -> Any:
            found.append(measure(KnownBackend(clock=clock)))
            return graph.forward

        from torch._dynamo.backends.common import aot_autograd

        return aot_autograd(fw_compiler=inner)(graph_module, inputs)

    torch._dynamo.reset()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        torch.compile(lambda x: x @ x + 1, backend=compiler, dynamic=True)(torch.randn(4, 4))
    assert found[0].notes == ()
    assert found[0].rates == measure(KnownBackend()).rates


def test_priors_cover_every_class_and_rank_the_reference_first(backend: KnownBackend) -> None:
    from mixbackend.backends.eager import EagerBackend

    unknown, reference = prior_rates(backend, DEVICE), prior_rates(EagerBackend(), DEVICE)
    for op_class in OP_CLASSES:
        if op_class == "view":
            continue
        slow, fast = unknown.rate(op_class, "float32"), reference.rate(op_class, "float32")
        assert slow is not None
        assert fast is not None
        assert slow.flops_per_s < fast.flops_per_s
        assert (slow.provenance, fast.provenance) == ("prior", "prior")
    assert unknown.entry_s > reference.entry_s


def test_stalls_of_a_busy_machine_are_not_believed(clock: Clock) -> None:
    class Stalled(KnownBackend):
        def seconds(self, region: Any, flops_per_s: float = FLOPS_PER_S) -> float:
            stalls = any(view.op == "aten.addmm.default" for view in region.views)
            return super().seconds(region, flops_per_s) + (0.05 if stalls else 0.0)

    backend = Stalled(clock=clock)
    prior = prior_rates(backend, DEVICE)
    idle, busy = measure(backend), measure(backend, busy=True)
    assert idle.settled
    assert idle.rates.rate("matmul", "float32").flops_per_s < 0.2 * prior.rate("matmul", "float32").flops_per_s
    assert not busy.settled
    assert busy.rates.rate("matmul", "float32") == prior.rate("matmul", "float32")
    assert busy.rates.rate("convolution", "float32").provenance == "probed"


def test_what_kinds_of_convolutions_took_is_kept_for_going_on(backend: KnownBackend) -> None:
    fixed = Fixed(1e-6, 1e-7, 1e-6, 2e-6, 3e-6, (("convolution/grouped", 4e-5), ("convolution/gradient", 7e-5)))
    unfinished = Unfinished(prior_rates(backend, DEVICE), fixed, ("1 matmul float32",))
    stored = json.loads(json.dumps({**rates_record(unfinished.rates), **unfinished_record(unfinished)}))
    assert read_unfinished(stored) == unfinished
    assert fixed.overhead("convolution/grouped/channels_last/constant") == 4e-5
    assert fixed.overhead("convolution/channels_last") == 3e-6 and fixed.overhead("attention") == 2e-6
