"""A first call waits for a compiler of whole graphs only where that is worth it; calls try its plans later."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from flat_costs import FlatCosts
from ranks_here import as_rank
from stand_in_backends import Loopback

from mixbackend.contracts import Traits
from mixbackend.cost import costs
from mixbackend.plan.planner import LEAST_GAIN

QUICK_S = 1e-3


class Quick(Loopback):
    name = "quick"


class Compiler(Loopback):
    name = "compiler"

    def traits(self) -> Traits:
        return replace(super().traits(), compiles_graphs=True)


@pytest.fixture
def owners(make_mixture: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Backends of a first plan of three ops that the compiler runs so many times as fast."""

    def found(
        gain: float, backends: tuple[Loopback, ...] = (Compiler(), Quick()), quick_s: float = QUICK_S, **options: Any
    ) -> set[str]:
        prices = FlatCosts(seconds={"quick": quick_s, "compiler": quick_s / gain, "eager": 1.0})
        monkeypatch.setattr(costs, "cost_model", lambda *arguments, **keywords: prices)
        torch._dynamo.reset()
        mixture = make_mixture(*backends, **options)
        compiled = torch.compile(lambda value: value.sin().exp().cos(), backend=mixture)
        with torch.no_grad():
            compiled(torch.randn(8))
        (graph,) = mixture.report().graphs
        assert {name for name, _ in graph.plan.single_backend_s} == {*(item.name for item in backends), "eager"}
        return set(graph.nodes_per_backend())

    return found


def test_a_compiler_that_is_little_faster_takes_no_part(owners: Any) -> None:
    assert owners(0.98 * LEAST_GAIN) == {"quick"}


def test_a_compiler_that_is_much_faster_has_the_whole_graph(owners: Any) -> None:
    assert owners(1.1 * LEAST_GAIN) == {"compiler"}


def test_a_compiler_of_a_small_graph_takes_no_part_however_fast(owners: Any) -> None:
    """Three ops of a hundredth of a millisecond: no number of calls gains the seconds of compiling back."""
    assert owners(5.0, quick_s=1e-5) == {"quick"}


@pytest.mark.parametrize(
    "options",
    [{"select": "off"}, {"rules": [{"match": {"op": "aten.exp"}, "require": "compiler"}]}],
    ids=["nothing is tried later", "it is asked for"],
)
def test_costs_alone_decide_where_nothing_else_can(owners: Any, options: dict[str, Any]) -> None:
    assert owners(1.1, **options) == {"compiler"}


def test_costs_alone_decide_among_ranks_which_try_nothing(owners: Any) -> None:
    with as_rank(0, torch.distributed.HashStore()):
        assert owners(1.1) == {"compiler"}


def test_costs_alone_decide_under_deterministic_algorithms(owners: Any) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert owners(1.1) == {"compiler"}
    finally:
        torch.use_deterministic_algorithms(False)


def test_costs_alone_decide_where_there_is_no_other_backend(owners: Any) -> None:
    assert owners(1.1, (Compiler(),)) == {"compiler"}
