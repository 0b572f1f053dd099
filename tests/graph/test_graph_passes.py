"""Graph passes are one list: each has a name and a predicate, is timed, printed and dumped, and counts for fuel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.fx
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.compile.stages import StageDriver
from mixbackend.graph.passes import CAPTURED, TRACED, constant_passes, joint_passes
from mixbackend.host.debug import DebugSettings

pytestmark = pytest.mark.smoke

ALL = (*TRACED, *CAPTURED, *joint_passes(1), *constant_passes(frozenset()))


def twice(x: torch.Tensor) -> Any:
    """Views, one twice, and the same product twice."""
    return (x.view(-1) * 2).view(4, 2) + (x.view(-1) * 2).view(4, 2)


def bare(x: torch.Tensor) -> Any:
    return torch.relu(x).sin()


def graph_of(function: Any) -> torch.fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(torch.randn(2, 4))


def ops(module: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def test_names_are_those_of_files_and_each_stands_for_one_pass() -> None:
    rewrites = {(item.name, getattr(item.rewrite, "func", item.rewrite).__module__) for item in ALL}
    assert len({name for name, _ in rewrites}) == len(rewrites)
    assert all(module.rpartition(".")[2] == name for name, module in rewrites)


@pytest.mark.parametrize("item", ALL, ids=lambda item: item.name)
@pytest.mark.parametrize("function", [twice, bare])
def test_where_a_pass_does_not_apply_its_rewrite_changes_nothing(item: Any, function: Any) -> None:
    module = graph_of(function)
    before = str(module.graph)
    if not item.applies(module):
        assert item.rewrite(module) == 0 and str(module.graph) == before


def test_what_a_pass_does_is_printed_dumped_and_timed_under_its_name(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setenv("MIXBACKEND_DUMP", str(tmp_path))
    monkeypatch.setenv("MIXBACKEND_DEBUG", "2")
    driver, module = StageDriver("graph", DebugSettings.from_environment()), graph_of(twice)
    changed = {item.name: driver.run_pass(item, module) for item in CAPTURED}
    assert changed == {
        "norm_dimensions": 0,
        "result_types": 0,
        "body_numbers": 0,
        "random_states": 0,
        "views_as_reshapes": 4,
        "redundant_as_strided": 0,
        "known_values": 0,
        "lifted_scalars": 0,
        "packed_weights": 0,
        "unpacked_codes": 0,
        "column_scales": 0,
        "cse": 3,
        "updates_in_place": 0,
    }
    assert [name for name, _ in driver.seconds] == ["views_as_reshapes", "cse"]
    assert {path.name for path in (tmp_path / "graph").iterdir()} == {"00_1_views_as_reshapes.txt", "00_2_cse.txt"}
    assert "graph: pass cse changed 3 places in" in capsys.readouterr().err


def test_fuel_leaves_out_what_results_are_right_without(monkeypatch) -> None:
    monkeypatch.setenv("MIXBACKEND_PASS_FUEL", "1")
    settings = DebugSettings.from_environment()
    first, second = graph_of(twice), graph_of(twice)
    for name, module in (("first", first), ("second", second)):
        driver = StageDriver(name, settings)
        for item in CAPTURED:
            driver.run_pass(item, module)
    assert ops(first).count("aten.mul.Tensor") == 1 and ops(second).count("aten.mul.Tensor") == 2
    assert "aten.view.default" not in ops(first) + ops(second)
