"""The look at the machine, tables scaled by it, and that a first call probes nothing."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mixbackend import Config
from mixbackend.backends.eager import EagerBackend
from mixbackend.backends.onednn.backend import OneDnnBackend
from mixbackend.contracts import BackendRates, DeviceModel, HostRates, OpRate
from mixbackend.contracts.build_seconds import BuildSeconds
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.cost import look as look_module
from mixbackend.cost import looking, model
from mixbackend.cost.costs import SessionCosts
from mixbackend.cost.look import LONGEST_S, Look, look_at, usable_cores
from mixbackend.cost.looking import look_here
from mixbackend.cost.priors import PRIOR_ERROR, prior_rates
from mixbackend.cost.rate_tables import Entry, Machine, Told
from mixbackend.cost.records import device_record, rates_record
from mixbackend.cost.scaled_rates import nearest, scaled
from mixbackend.cost.switches import SWITCH
from mixbackend.graph.trace import trace_graph
from mixbackend.host.devices import device_name
from mixbackend.storage import Database, Storage

DEVICE = DeviceModel("cpu Test", (("float32", 2e11), ("bfloat16", 4e11)), 2e10, 8e6, 6e10, 2e-6, 2, "probed")
LOOK = Look({"float32": 1e11, "bfloat16": 2e11}, 3e10, 1e-6, 1e-8, 2.0)
ROWS = (
    ("matmul", "float32", OpRate(1e-6, 1.5e11)),
    ("matmul", "bfloat16", OpRate(1e-6, 3e11)),
    ("pointwise", "float32", OpRate(2e-7, 3e10)),
)


def entry(name: str, version: str = "2.13.0", error: float = 0.1) -> Entry:
    rates = BackendRates(name, 1e-6, 1e-7, 1.2, ROWS, switch_s=1e-4)
    told = tuple(Told("here", "measured", error) for _ in ROWS)
    return Entry(rates, version, BuildSeconds(0.2, 0.01), error, told)


MACHINE = Machine("Maker", DEVICE, LOOK, "measured", 0.1, {"here": "a test"}, (entry("eager"), entry("onednn")))


def test_a_machine_that_is_twice_as_fast_has_all_rates_doubled_and_seconds_halved() -> None:
    products = {dtype: 2 * rate for dtype, rate in LOOK.products.items()}
    found = scaled(MACHINE, Look(products, 6e10, 5e-7, 5e-9, 2.0), "cpu Here", 2)
    assert found.settled and found.device.device == "cpu Here" and found.device.provenance == "prior"
    assert found.device.peak("float32") == 4e11 and found.device.bytes_per_s == 4e10 and found.device.launch_s == 1e-6
    for name in ("eager", "onednn"):
        rates: Any = found.rates(name, "2.13.1")
        assert rates.rate("matmul", "bfloat16") == OpRate(5e-7, 6e11)
        assert (rates.entry_s, rates.crossing_s, rates.switch_s) == (5e-7, 5e-8, 5e-5)
        assert (rates.memory_scale, rates.error) == (1.2, 0.2)


def test_each_dtype_has_its_own_scale_and_the_rest_goes_with_float32() -> None:
    found: Any = scaled(MACHINE, Look({"float32": 1e11, "bfloat16": 1e11}, 3e10, 1e-6, 1e-8, 2.0), "cpu Here", 2)
    rates = found.rates("eager", "2.13.0")
    assert rates.rate("matmul", "float32").flops_per_s == 1.5e11
    assert rates.rate("matmul", "bfloat16").flops_per_s == 1.5e11
    fewer: Any = scaled(MACHINE, Look({"float32": 2e11}, 3e10, 1e-6, 1e-8, 2.0), "cpu Here", 2)
    assert fewer.rates("eager", "2.13.0").rate("matmul", "bfloat16").flops_per_s == 6e11


def test_products_of_blas_are_scaled_apart_from_all_other_arithmetic() -> None:
    """MKL takes narrower vectors on processors of other makers; oneDNN and generated code do not."""
    look = replace(LOOK, products={"float32": 1e11, "bfloat16": 4e11}, onednn_flops_per_s=2.5e11)
    found: Any = scaled(MACHINE, look, "cpu Here", 2)
    eager, onednn = found.rates("eager", "2.13.0", calls_blas=True), found.rates("onednn", "2.13.0")
    assert eager.rate("matmul", "float32").flops_per_s == pytest.approx(1.5e11)
    assert eager.rate("pointwise", "float32").flops_per_s == pytest.approx(2.5 * 3e10)
    assert onednn.rate("matmul", "float32").flops_per_s == pytest.approx(2.5 * 1.5e11)
    assert found.device.peak("float32") == pytest.approx(2.5 * 2e11)
    assert {item.rate("matmul", "bfloat16").flops_per_s for item in (eager, onednn)} == {6e11}
    knows: Any = scaled(replace(MACHINE, look=replace(LOOK, onednn_flops_per_s=2.5e11)), look, "cpu Here", 2)
    assert knows.rates("onednn", "2.13.0").rate("matmul", "float32").flops_per_s == pytest.approx(1.5e11)


def test_a_look_at_a_processor_has_the_product_of_onednn() -> None:
    seen = look_at("cpu")
    assert (seen.onednn_flops_per_s is not None) == torch.backends.mkldnn.is_available()
    assert Look.read(json.loads(json.dumps(seen.record()))) == seen


def test_another_version_of_a_library_is_less_certain_and_an_unknown_one_has_no_rates() -> None:
    found = scaled(MACHINE, LOOK, "cpu Here", 2)
    other: Any = found.rates("onednn", "3.0.0")
    assert other.error == 0.4 and found.rates("vendor", "1") is None, "and another product is so, too"


def test_a_dtype_that_nobody_measured_is_less_certain() -> None:
    told = tuple(
        Told("here", *(("documented", 0.5) if dtype == "bfloat16" else ("measured", 0.1))) for _, dtype, _ in ROWS
    )
    machine = replace(MACHINE, entries=(replace(entry("eager"), told=told),))
    found = scaled(machine, LOOK, "cpu Test", 2)
    errors = [found.rates("eager", "2.13", dtypes).error for dtypes in (["float32"], ["float32", "bfloat16"])]  # type: ignore[union-attr]
    assert errors == [0.1, 0.5]


def test_products_out_of_proportion_were_disturbed_and_are_scaled_by_cores_and_the_loop_of_python() -> None:
    found: Any = scaled(MACHINE, Look({"float32": 2e9}, 1e9, 1e-6, 5e-9, 4.0), "cpu Here", 4)
    assert not found.settled
    assert found.rates("eager", "2.13.0").rate("matmul", "float32").flops_per_s == pytest.approx(4 * 1.5e11)
    assert found.device.bytes_per_s == DEVICE.bytes_per_s and found.device.cache_bytes == 2 * DEVICE.cache_bytes


def test_the_pause_between_kernels_is_the_gpus_own_and_queueing_the_processors() -> None:
    gpu = replace(DEVICE, device="cuda:0 Test", transfer_s=1e-5, transfer_bytes_per_s=1e10)
    rates = BackendRates("eager", 0.0, 0.0, 1.0, ROWS, host=HostRates(2e-6, 1e-7, 4e-6, (("matmul", 8e-6),)))
    machine = replace(MACHINE, device=gpu, entries=(replace(entry("eager"), rates=rates),))
    found: Any = scaled(machine, Look(LOOK.products, 3e10, 5e-7, 5e-9, 2.0), "cuda:0 Here", 2).rates("eager", "2.13")
    assert found.rate("matmul", "float32").overhead_s == 1e-6
    assert found.host == HostRates(1e-6, 5e-8, 2e-6, (("matmul", 4e-6),))


def test_the_nearest_machine_is_this_product_then_a_measured_one_then_the_same_makers() -> None:
    here = replace(MACHINE, device=replace(DEVICE, device="cpu Here", threads=64))
    documented = replace(MACHINE, maker="Other", mark="documented", entries=())
    other, same = replace(MACHINE, maker="Other"), replace(MACHINE, device=replace(DEVICE, threads=16))
    many = [documented, other, same, here]
    for left in range(len(many), 0, -1):
        assert nearest(many[:left], "cpu Here", "Maker", 2) is many[left - 1]
    assert nearest([same, MACHINE], "cpu Here", "Maker", 4) is MACHINE, "about as many threads"
    assert nearest([], "cpu Here", "Maker", 2) is None


def test_a_look_takes_a_moment_and_leaves_torchs_settings_alone() -> None:
    state, precision = torch.get_rng_state(), torch.get_float32_matmul_precision()
    torch.mm(torch.ones(8, 8), torch.ones(8, 8))
    begin = time.perf_counter()
    found = look_at("cpu", ("float32", "bfloat16", "int64"))
    # The bound holds from the first product on; a busy machine may lose whole turns.
    assert time.perf_counter() - begin < 5 * LONGEST_S
    assert set(found.products) <= {"float32", "bfloat16"} and found.cores == usable_cores() >= 1.0
    assert torch.equal(state, torch.get_rng_state()) and torch.get_float32_matmul_precision() == precision


def test_what_there_is_no_time_for_is_left_out() -> None:
    ticks = itertools.count()
    found = look_at("cpu", ("bfloat16", "float16"), clock=lambda: float(next(ticks)))
    assert set(found.products) == {"float32"}


def test_cores_are_those_of_the_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(look_module, "QUOTA", quota)
    everywhere = usable_cores()
    quota.write_text("50000 100000\n")
    assert usable_cores() == 0.5
    quota.write_text("max 100000\n")
    assert usable_cores() == everywhere


# --- a session -------------------------------------------------------------------------------------------------------


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, ...]]]:
    """Dtypes of the looks that were taken; the table of the family is ``MACHINE``."""
    taken: list[tuple[str, ...]] = []

    def look(device_type: str, dtypes: Any) -> Look:
        taken.append(tuple(dtypes))
        return Look({dtype: LOOK.products.get(dtype, 1e10) for dtype in ("float32", *dtypes)}, 3e10, 1e-6, 1e-8, 2.0)

    monkeypatch.setattr(looking, "look_at", look)
    monkeypatch.setattr(model, "tables_of", lambda family: (MACHINE,))
    monkeypatch.setenv(SWITCH, "1")
    yield taken


def test_a_dtype_is_looked_at_once_for_all_processes(looks: list[tuple[str, ...]], tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    database = Database.open(tmp_path)
    for dtypes in (["float32"], ["float32"], ["bfloat16"], ["bfloat16", "float32"]):
        assert look_here("cpu", dtypes, database) is not None
    assert looks == [("float32",), ("bfloat16",)]


def test_a_disturbed_look_is_taken_again_after_a_while(
    looks: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    seen = [Look({"float32": 1e9}, 1e9, 1e-6, 1e-8, 2.0), LOOK]
    monkeypatch.setattr(looking, "look_at", lambda device_type, dtypes: seen.pop(0))
    database, now = Database.open(tmp_path), time.time()
    for later, left in ((0.0, 1), (1700.0, 1), (1900.0, 0), (1e6, 0)):
        monkeypatch.setattr(looking.time, "time", lambda later=later: now + later)
        assert look_here("cpu", ["float32"], database) is not None and len(seen) == left


def test_where_there_is_no_room_for_a_look_plans_go_by_priors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(device_type: str, dtypes: Any) -> Look:
        raise RuntimeError("out of memory")

    tmp_path.chmod(0o700)
    monkeypatch.setattr(looking, "look_at", full)
    monkeypatch.setenv(SWITCH, "1")
    assert look_here("cpu", ["float32"], Database.open(tmp_path)) is None
    assert "out of memory" in caplog.text


def _costs(folder: Path) -> SessionCosts:
    folder.chmod(0o700)
    return SessionCosts(Config(), [OneDnnBackend(), EagerBackend()], Storage(str(folder), None, 1.0, {}), records=True)


def _graph(*dtypes: torch.dtype) -> Any:
    with fresh_fake_mode():
        values = [torch.empty(8, 8, dtype=dtype) for dtype in dtypes]
    return trace_graph(lambda *values: tuple(torch.ops.aten.tanh(value) for value in values), values)[1]


def test_a_session_plans_by_the_table_and_states_its_error(looks: list[tuple[str, ...]], tmp_path: Path) -> None:
    costs, graph = _costs(tmp_path), _graph(torch.float32)
    rates: Any = costs.running(graph)
    assert rates.rates["onednn"].rate("matmul", "float32") == OpRate(1e-6, 1.5e11)
    assert costs.error(graph, ["onednn"]) == pytest.approx(0.2 * (1 if _same("2.13.0") else 2))
    assert costs.comparable(graph) == {"onednn", "eager"}
    assert costs.running(_graph(torch.float32)) is rates and looks == [("float32",)]
    costs.running(_graph(torch.float32, torch.bfloat16))
    assert len(looks) == 2 and "bfloat16" in looks[1]


def _same(version: str) -> bool:
    from mixbackend.cost.rate_tables import major

    return major(OneDnnBackend().availability().version) == major(version)


def test_a_backend_that_no_table_has_goes_by_its_prior_with_a_large_error(
    looks: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "tables_of", lambda family: (replace(MACHINE, entries=(entry("eager"),)),))
    assert _costs(tmp_path).error(_graph(torch.float32), ["onednn"]) == PRIOR_ERROR


def test_rows_that_are_further_off_than_a_prior_are_not_taken(
    looks: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbed = replace(MACHINE, entries=(entry("eager", error=0.6), entry("onednn", error=0.6)))
    monkeypatch.setattr(model, "tables_of", lambda family: (disturbed,))
    costs, graph = _costs(tmp_path), _graph(torch.float32)
    rates: Any = costs.running(graph)
    prior = prior_rates(OneDnnBackend(), rates.device)
    assert rates.rates["onednn"].rates == prior.rates and costs.error(graph, ["onednn"]) == PRIOR_ERROR


def test_where_looking_is_forbidden_priors_are_compared_with_nothing(
    looks: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "0")
    costs, graph = _costs(tmp_path), _graph(torch.float32)
    assert costs.comparable(graph) == frozenset() and costs.error(graph, ["onednn"]) == 0.0 and looks == []


def test_without_a_look_what_was_measured_here_is_compared(
    looks: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "0")
    costs, graph = _costs(tmp_path), _graph(torch.float32)
    here = replace(DEVICE, device=device_name("cpu"), threads=torch.get_num_threads())
    stated = rates_record(replace(entry("onednn").rates, provenance="prior"))
    costs.database.set_rates("device", model.device_subject(here.device), device_record(here))
    costs.database.set_rates("backend", model.rates_subject(OneDnnBackend(), here), stated)
    assert costs.comparable(graph) == {"onednn"}
    costs.database.set_rates("backend", model.rates_subject(OneDnnBackend(), here), {**stated, model.FAILED: True})
    assert _costs(tmp_path).comparable(graph) == frozenset(), "a backend that failed when it was probed has a prior"
