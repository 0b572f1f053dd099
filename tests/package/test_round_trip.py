"""A program that was exported and loaded does what its module does, with the module's weights in the file's memory."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from package_models import CONFIG, Cached, Counting, Step, error_of

import mixbackend
from mixbackend.contracts import PackageError, PackageInputError


def exported(model: torch.nn.Module, *args: Any, **keywords: Any) -> Any:
    return torch.export.export(model.eval(), args, **keywords)


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> tuple[Counting, Path]:
    torch.manual_seed(0)
    model, path = Counting().eval(), tmp_path_factory.mktemp("package") / "counting.mix"
    mixbackend.export(exported(model, torch.randn(4, 16)), path, config=CONFIG)
    return model, path


def test_results_are_the_module_s(counting: tuple[Counting, Path]) -> None:
    model, path = counting
    program = mixbackend.load(path, config=CONFIG)
    x = torch.randn(4, 16)
    with torch.no_grad():
        eager, exact = copy.deepcopy(model)(x), copy.deepcopy(model).double()(x.double())
    result = program(x)
    assert list(result) == ["y", "calls", "table", "size", "none"]
    assert error_of(result["y"], eager["y"], exact["y"]) < 4
    assert result["size"] == 4 and result["none"] is None and result["table"] == 1999000.0
    assert not result["y"].requires_grad


def test_buffers_are_written_in_this_program_alone(counting: tuple[Counting, Path]) -> None:
    model, path = counting
    program, other = mixbackend.load(path, config=CONFIG), mixbackend.load(path, config=CONFIG)
    for _ in range(3):
        result = program(torch.randn(4, 16))
    assert result["calls"] == 3 and program.state_dict()["calls"] == 3
    assert other.state_dict()["calls"] == 0 and model.calls == 0


def test_regions_come_from_the_file(counting: tuple[Counting, Path]) -> None:
    program = mixbackend.load(counting[1], config=CONFIG, strict=True)
    program(torch.randn(4, 16))
    report = program.report()
    assert report.events == ()
    compiled = [region for graph in report.graphs for region in graph.regions]
    owners = [region.backend for graph in report.graphs for region in graph.plan.regions]
    assert "codegen" in owners
    assert all(record.cached for record, owner in zip(compiled, owners, strict=True) if owner == "codegen")


def test_a_weight_with_two_names_is_stored_once(counting: tuple[Counting, Path]) -> None:
    model, path = counting
    weights = mixbackend.load(path, config=CONFIG).state_dict()
    assert set(weights) >= {"narrow.weight", "narrow.bias", "calls", "shift", "table"}
    assert sum(name.endswith(".weight") for name in weights) == 2
    assert torch.equal(weights["table"], model.table) and torch.equal(weights["shift"], model.shift)


def test_other_weights_run_from_the_next_call_on(counting: tuple[Counting, Path]) -> None:
    model, path = counting
    program = mixbackend.load(path, config=CONFIG)
    x = torch.randn(4, 16)
    before = program(x)["y"]
    other = Counting().eval()
    state = {
        name: dict(other.named_parameters())[name]
        for name in ("wide.weight", "narrow.bias")
        if name in program.state_dict()
    }
    program.load_state_dict(state, strict=False)
    changed = copy.deepcopy(model)
    changed.load_state_dict(state, strict=False)
    with torch.no_grad():
        assert torch.allclose(program(x)["y"], changed(x)["y"], atol=1e-5)
    assert not torch.allclose(program(x)["y"], before, atol=1e-3)
    with pytest.raises(PackageError, match=r"narrow\.bias is \(3,\) of torch\.float32, needed \(16,\)"):
        program.load_state_dict({"narrow.bias": torch.zeros(3)}, strict=False)
    with pytest.raises(PackageError, match="nothing is no weight of the package"):
        program.load_state_dict({**program.state_dict(), "nothing": torch.zeros(3)})


@pytest.mark.parametrize(
    ("args", "keywords", "text"),
    [
        ((torch.zeros(5, 16),), {}, r"args\[0\] has the sizes \[5, 16\], exported with \[4, 16\]"),
        ((torch.zeros(4, 16, dtype=torch.float64),), {}, r"args\[0\] is of torch.float64, exported with torch.float32"),
        ((torch.zeros(4, 16, 1),), {}, r"args\[0\] has 3 dimensions, exported with 2"),
        ((torch.zeros(4, 16, device="meta"),), {}, r"args\[0\] is on meta, exported on cpu"),
        (([1.0],), {}, r"args\[0\] is a list, not a tensor"),
        ((), {}, r"args is a tuple of 0; the program was exported with a tuple of 1"),
        ((torch.zeros(4, 16),), {"scale": 3.0}, r"kwargs is one with \['scale'\]"),
    ],
)
def test_other_arguments_are_a_clear_error(
    counting: tuple[Counting, Path], args: tuple[Any, ...], keywords: dict[str, Any], text: str
) -> None:
    program = mixbackend.load(counting[1], config=CONFIG)
    with pytest.raises(PackageInputError, match=text):
        program(*args, **keywords)


def test_arguments_may_lie_otherwise_and_come_by_name(counting: tuple[Counting, Path]) -> None:
    model, path = counting
    program = mixbackend.load(path, config=CONFIG)
    x = torch.randn(16, 4).t()
    with torch.no_grad():
        assert torch.allclose(program(x=x)["y"], copy.deepcopy(model)(x)["y"], atol=1e-5)


def test_methods_share_a_cache(tmp_path: Path) -> None:
    torch.manual_seed(0)
    prefill = Cached().eval()
    step = Step(prefill).eval()
    x, one, place = torch.randn(4, 8), torch.randn(1, 8), torch.tensor([2])
    programs = {"prefill": exported(prefill, x), "decode": exported(step, one, place)}
    mixbackend.export(programs, tmp_path / "two.mix", config=CONFIG)
    program = mixbackend.load(tmp_path / "two.mix", config=CONFIG)
    with torch.no_grad():
        for _ in range(2):
            assert torch.allclose(program.methods["prefill"](x), prefill(x), atol=1e-5)
            assert torch.allclose(program.methods["decode"](one, place), step(one, place), atol=1e-5)
    assert sum(name.endswith("cache") for name in program.state_dict()) == 1
    with pytest.raises(PackageError, match="has the methods prefill, decode"):
        program(x)


def test_a_call_runs_the_program_that_its_sizes_fit(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).eval()
    programs = {"forward": [exported(model, torch.randn(size, 8)) for size in (2, 5)]}
    mixbackend.export(programs, tmp_path / "sizes.mix", config=CONFIG)
    program = mixbackend.load(tmp_path / "sizes.mix", config=CONFIG)
    with torch.no_grad():
        for size in (2, 5):
            x = torch.randn(size, 8)
            assert torch.allclose(program(x), model(x), atol=1e-6)
    with pytest.raises(
        PackageInputError, match=r"fit none of 2 programs of forward: forward: .*\[3, 8\].*forward\.1: "
    ):
        program(torch.randn(3, 8))


class Writing(torch.nn.Module):
    def forward(self, x: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        state["sum"].add_(x)
        return state["sum"] * 2


def test_what_a_program_writes_into_is_the_caller_s(tmp_path: Path) -> None:
    mixbackend.export(
        exported(Writing(), torch.ones(3, 3), {"sum": torch.zeros(3, 3)}), tmp_path / "w.mix", config=CONFIG
    )
    program = mixbackend.load(tmp_path / "w.mix", config=CONFIG)
    state = {"sum": torch.zeros(3, 3)}
    assert torch.equal(program(torch.ones(3, 3), state), torch.full((3, 3), 2.0))
    assert torch.equal(state["sum"], torch.ones(3, 3))
    with pytest.raises(PackageInputError, match=r"args\[1\]\['sum'\] is written into, and lies in memory"):
        program(torch.ones(3, 3), {"sum": torch.zeros(3, 3).t()[:, [0, 1, 2]].t()})
    x = torch.ones(3, 3)
    with pytest.raises(
        PackageInputError, match=r"args\[1\]\['sum'\] is written into, and shares memory with args\[0\]"
    ):
        program(x, {"sum": x})


def test_what_cannot_be_packaged_is_refused(tmp_path: Path) -> None:
    class Branching(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,))

    with pytest.raises(PackageError, match="whose subgraphs have no text"):
        mixbackend.export(exported(Branching(), torch.ones(3)), tmp_path / "no.mix", config=CONFIG)
    with pytest.raises(PackageError, match=r"made of programs of torch\.export, not of a Linear"):
        mixbackend.export(torch.nn.Linear(2, 2), tmp_path / "no.mix")  # type: ignore[arg-type]
    rule = {"match": {"op": "aten.add"}, "require": "inductor"}
    with pytest.raises(PackageError, match="requires inductor"):
        mixbackend.export(
            exported(Writing(), torch.ones(1), {"sum": torch.ones(1)}), tmp_path / "no.mix", config={"rules": [rule]}
        )
    assert not (tmp_path / "no.mix").exists()
