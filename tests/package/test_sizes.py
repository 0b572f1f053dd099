"""Programs with symbolic sizes: all that was asserted is checked, and each range of sizes has its plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from package_models import CONFIG, error_of
from regime_cases import LINES, BySize, function, value_of
from stand_in_backends import Loopback

import mixbackend
from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import PackageInputError, Traits
from mixbackend.cost import costs as costs_module
from mixbackend.registry import isolated_registry

Dim = torch.export.Dim


class Attending(torch.nn.Module):
    """Sizes of two inputs that belong together, a reshape that asserts, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, take: int) -> tuple[torch.Tensor, int]:
        y = torch.nn.functional.gelu(self.inside(x)) * mask
        return y.view(x.shape[0] // 2, 2, 8).sum(1)[:, :take], x.shape[0] * 3


@pytest.fixture(scope="module")
def attending(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Path]:
    torch.manual_seed(0)
    model, path = Attending().eval(), tmp_path_factory.mktemp("package") / "attending.mix"
    rows = Dim("rows", min=2, max=64)
    shapes = {"x": {0: 2 * rows}, "mask": {0: 2 * rows}, "take": Dim.DYNAMIC}
    args = (torch.randn(6, 8), torch.ones(6, 1), 3)
    mixbackend.export(torch.export.export(model, args, dynamic_shapes=shapes), path, config=CONFIG)
    return model, path


def test_every_size_in_the_range_runs(attending: tuple[torch.nn.Module, Path]) -> None:
    model, path = attending
    program = mixbackend.load(path, config=CONFIG, strict=True)
    for rows, take in ((6, 3), (4, 2), (128, 7), (10, 5), (6, 3)):
        x, mask = torch.randn(rows, 8), torch.rand(rows, 1)
        result, number = program(x, mask, take)
        with torch.no_grad():
            eager, _ = model(x, mask, take)
            exact, _ = model.double()(x.double(), mask.double(), take)
            model.float()
        assert error_of(result, eager, exact) < 4 and number == 3 * rows


@pytest.mark.parametrize(
    ("rows", "masks", "take", "text"),
    [
        (6, 4, 3, r"args\[1\] has the sizes \[4, 1\], exported with \[mul\(2, s0\), 1\] \(s0 is size 0 of args\[0\]\)"),
        (200, 200, 3, r"size 0 of args\[0\] is 100, exported for at least 2 and at most 64"),
        (7, 7, 3, r"args\[0\] has the sizes \[7, 8\], exported with \[mul\(2, s0\), 8\]"),
        (6, 6, 99, r"args\[2\] is 99, exported for at least \d and at most \d"),
        (6, 6, 3.0, r"args\[2\] is a float, not an integer"),
    ],
)
def test_sizes_outside_are_a_clear_error(
    attending: tuple[torch.nn.Module, Path], rows: int, masks: int, take: Any, text: str
) -> None:
    program = mixbackend.load(attending[1], config=CONFIG)
    with pytest.raises(PackageInputError, match=text):
        program(torch.randn(rows, 8), torch.ones(masks, 1), take)


class Local(Loopback):
    def traits(self) -> Traits:
        return replace(super().traits(), packaged="data")


def test_each_range_of_sizes_has_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs_module, "cost_model", lambda *arguments, **keywords: BySize(lines=LINES))

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    small, large = (type(name, (Local,), {"name": name})() for name in ("small", "large"))
    shapes = {"x": {0: Dim("rows", min=2, max=100000)}}
    with isolated_registry(small, large, EagerBackend()):
        mixbackend.export(torch.export.export(Module(), (value_of(16),), dynamic_shapes=shapes), tmp_path / "r.mix")
        report = mixbackend.load(tmp_path / "r.mix", strict=True).report().to_dict()
        (graph,) = report["graphs"]
        low, high = graph["regimes"]
        assert [region["backend"] for region in low["regions"]] == ["small"]
        assert [region["backend"] for region in high["regions"]] == ["large"]
        program = mixbackend.load(tmp_path / "r.mix", strict=True)
        for rows in (16, 2, high["first"] - 1, high["first"], 4 * high["first"], 3):
            before = small.calls, large.calls
            x = value_of(rows)
            torch.testing.assert_close(program(x), function(x))
            assert (large.calls > before[1]) == (rows >= high["first"]), rows
    with isolated_registry(small, EagerBackend()):
        program = mixbackend.load(tmp_path / "r.mix")
        x = value_of(4 * high["first"])
        torch.testing.assert_close(program(x), function(x))
        assert {event.backend for event in program.report().events if event.region} == {"large"}
