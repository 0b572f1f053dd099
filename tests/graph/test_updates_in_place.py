"""Updates of a graph's inputs are made in place where nobody can tell, and stay copies where somebody could."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.graph.updates_in_place import applies, update_in_place

aten = torch.ops.aten
COPY = aten.copy_.default
PLACES = torch.tensor([3, 5])


def rand(*sizes: int) -> torch.Tensor:
    return torch.rand(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def cache_rows(cache, places, rows):
    new = aten.index_copy.default(cache, 1, places, rows)
    result = new.sum(0), new.transpose(0, 1).exp()
    COPY(cache, new)
    return result


def put_rows(cache, places, rows):
    new = aten.index_put.default(cache, [None, places], rows)
    result = (new * 2).sum()
    COPY(cache, new)
    return (result,)


def read_before(cache, places, rows):
    before = cache[0].exp()
    new = aten.index_copy.default(cache, 1, places, rows)
    result = before, new.sum(1)
    COPY(cache, new)
    return result


def read_after(cache, places, rows):
    new = aten.index_copy.default(cache, 1, places, rows)
    result = new.sum(1), cache.exp()
    COPY(cache, new)
    return result


def read_through_an_older_view(cache, places, rows):
    view = cache[0]
    new = aten.index_copy.default(cache, 1, places, rows)
    result = new.sum(1), view.exp()
    COPY(cache, new)
    return result


def returned(cache, places, rows):
    new = aten.index_copy.default(cache, 1, places, rows)
    COPY(cache, new)
    return (new,)


def returned_as_a_view(cache, places, rows):
    new = aten.index_copy.default(cache, 1, places, rows)
    COPY(cache, new)
    return (new[0],)


def rows_of_itself(cache, places, rows):
    new = aten.index_copy.default(cache, 1, places, cache[:, :2])
    COPY(cache, new)
    return (new.sum(0),)


def another_input(cache, places, rows):
    other = aten.index_copy.default(cache, 1, places, rows)
    COPY(rows, other[:, :2])
    return (other.sum(),)


def run(function: Any, dynamic: bool) -> tuple[int, torch.fx.GraphModule]:
    inputs = [rand(4, 60, 16), PLACES, rand(4, 2, 16)]
    module = make_fx(function, tracing_mode="symbolic" if dynamic else "real")(*inputs)
    expected, actual = [item.clone() for item in inputs], [item.clone() for item in inputs]
    results = module(*expected)
    made = make_fx(function, tracing_mode="symbolic" if dynamic else "fake")(*inputs)
    count = update_in_place(made)
    made.graph.lint()
    made.recompile()
    for mine, eagers in zip((*made(*actual), *actual), (*results, *expected), strict=True):
        torch.testing.assert_close(mine, eagers, rtol=0, atol=0)
    return count, made


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [cache_rows, put_rows, read_before])
def test_rows_are_written_where_they_are_to_be(function: Any, dynamic: bool) -> None:
    count, module = run(function, dynamic)
    assert count == 1
    assert not module.graph.find_nodes(op="call_function", target=COPY)
    assert not applies(module)


@pytest.mark.parametrize(
    "function",
    [read_after, read_through_an_older_view, returned, returned_as_a_view, rows_of_itself, another_input],
)
def test_copies_stay_where_somebody_could_tell(function: Any) -> None:
    count, _ = run(function, dynamic=False)
    assert count == 0


class Cache(torch.nn.Module):
    """A layer that keeps what it saw, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(1, 2, 64, 16))
        self.register_buffer("count", torch.tensor(0))
        self.keys = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[2]) + self.count
        self.count.add_(x.shape[2])
        keys = self.keys(x)
        self.kept.index_copy_(2, place, keys)
        return torch.nn.functional.scaled_dot_product_attention(x, self.kept, self.kept)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["codegen", "inductor", "eager"])
def test_a_step_is_one_region_that_copies_no_cache(name: str, tmp_path: Any) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    eager, mine = Cache().eval(), Cache().eval()
    mine.load_state_dict(eager.state_dict())
    settings = {"backends": [*dict.fromkeys([name, "eager"])], "cache": {"dir": str(tmp_path)}, "select": "off"}
    mixture = Mixture(load_config({**settings, "on_failure": "raise"}))
    compiled = torch.compile(mine, backend=mixture, dynamic=False)
    with torch.no_grad():
        for length in (3, 1, 1):
            x = rand(1, 2, length, 16)
            torch.testing.assert_close(compiled(x), eager(x))
    torch.testing.assert_close(mine.state_dict(), eager.state_dict())
    for graph in mixture.report().to_dict()["graphs"]:
        ops = [region["ops"] for region in graph["regions"] if region["backend"] == name]
        assert len(ops) == 1
        assert any("aten.index_copy_.default" in counts for counts in ops)
    torch.compiler.reset()
