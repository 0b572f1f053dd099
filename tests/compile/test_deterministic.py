"""``torch.use_deterministic_algorithms``: equal bits every time or eager's error; who promises nothing is not asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from mixbackend.backends.codegen.backend import CodegenBackend
from mixbackend.backends.inductor.backend import InductorBackend
from mixbackend.contracts import Traits, Unsupported
from mixbackend.contracts.region_text import read_region_text
from mixbackend.graph.trace import trace_region
from mixbackend.partitioner.judging import refused_by_traits
from mixbackend.partitioner.signatures import MetaNumbers, signature_of

aten = torch.ops.aten


@pytest.fixture
def asked() -> Iterator[None]:
    """The switch is on, and what cannot repeat its results is an error."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _switched_back() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def careless(kind):
    """A backend of this kind that promises nothing."""

    class Careless(kind):
        name = "careless"

        def traits(self) -> Traits:
            return Traits(deterministic=False)

    return Careless()


def owners(mixture) -> list[set[str]]:
    """Backends of the regions, graph by graph."""
    graphs = mixture.report().to_dict()["graphs"]
    return [{region["backend"] for region in graph["regions"]} for graph in graphs]


def test_views_say_what_is_asked(asked):
    region = trace_region(lambda x: x.relu(), [torch.ones(3)])
    assert region.deterministic and all(view.deterministic for view in region.views)
    torch.use_deterministic_algorithms(False)
    other = trace_region(lambda x: x.relu(), [torch.ones(3)])
    assert not other.deterministic and not any(view.deterministic for view in other.views)
    assert region.key != other.key
    assert signature_of(region.views[0], MetaNumbers()) != signature_of(other.views[0], MetaNumbers())


def test_the_text_of_a_region_says_it_wherever_it_is_read(asked):
    region = trace_region(lambda x: x.relu(), [torch.ones(3)])
    assert region.text.startswith("mixbackend-region 1 inference deterministic\n")
    torch.use_deterministic_algorithms(False)
    again = read_region_text(region.text)
    assert (again.key, again.text) == (region.key, region.text)
    assert again.deterministic and all(view.deterministic for view in again.views)


def test_who_promises_nothing_is_not_asked(asked, loopback):
    (view,) = trace_region(lambda x: x.relu(), [torch.ones(3)]).views
    refusal = refused_by_traits(careless(type(loopback)), view)
    assert isinstance(refusal, Unsupported) and refusal.code == "deterministic"
    assert refused_by_traits(loopback, view) is None
    torch.use_deterministic_algorithms(False)
    (view,) = trace_region(lambda x: x.relu(), [torch.ones(3)]).views
    assert refused_by_traits(careless(type(loopback)), view) is None


def test_the_switch_is_seen_in_the_middle_of_a_program(make_mixture, loopback):
    mixture = make_mixture(careless(type(loopback)))
    run = torch.compile(lambda x: (x * 2).relu().sum(), backend=mixture)
    value = torch.randn(4, 4)
    expected = run(value)
    torch.use_deterministic_algorithms(True)
    torch.testing.assert_close(run(value), expected)
    torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(run(value), expected)
    assert owners(mixture) == [{"careless"}, {"eager"}]
    refusals = mixture.report().to_dict()["graphs"][1]["refusals"]
    assert {item["code"] for item in refusals} == {"deterministic"}


def test_what_eager_refuses_is_refused_as_eager_does(asked, make_mixture):
    places, value = torch.tensor([0, 1]), torch.ones(2)
    run = torch.compile(lambda x: x.put(places, value) * 2, backend=make_mixture())
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        torch.zeros(4).put(places, value)
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        run(torch.zeros(4))
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.testing.assert_close(run(torch.zeros(4)), torch.tensor([2.0, 2, 0, 0]))


def test_a_reference_is_not_held_to_it(asked, make_mixture, loopback):
    """A backend may have what eager lacks: verifying it must not fail over eager's lack."""

    class Puts(type(loopback)):
        name = "puts"

        def compile(self, region):
            compiled = super().compile(region)

            def run(inputs):
                torch.use_deterministic_algorithms(False)
                try:
                    return compiled.run(inputs)
                finally:
                    torch.use_deterministic_algorithms(True)

            return type(compiled)(run, strides="contiguous")

    mixture = make_mixture(Puts())
    places, value = torch.tensor([0, 1]), torch.ones(2)
    run = torch.compile(lambda x: x.put(places, value) * 2, backend=mixture)
    torch.testing.assert_close(run(torch.zeros(4)), torch.tensor([2.0, 2, 0, 0]))
    assert owners(mixture) == [{"puts"}]
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


def test_uninitialised_memory_is_filled_as_in_eager(asked, make_mixture):
    backend = CodegenBackend()
    if not backend.availability().available:
        pytest.skip(backend.availability().reason)
    run = torch.compile(lambda x: (x.new_empty(3, 4) * 1, torch.empty_like(x), x + 1), backend=make_mixture(backend))
    made, like, _ = run(torch.ones(5))
    assert made.isnan().all() and like.isnan().all()


class Scatters(nn.Module):
    """Sums that several threads would make in any order, if they could."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(13, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, places, rows):
        value = self.norm(self.embedding(places))
        added = rows.new_zeros(7, 64).index_add(0, places.flatten() % 7, rows)
        written = rows.new_zeros(7, 64).index_put((places.flatten() % 7,), rows, accumulate=True)
        along = rows.new_zeros(5, 64).scatter_add(0, (places.flatten() % 5)[:, None].expand(-1, 64), rows)
        return value.square().mean() + added.sin().sum() + written.cos().sum() + along.sum() + rows.sum()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [CodegenBackend, InductorBackend])
def test_equal_bits_every_time(asked, make_mixture, make):
    backend = make()
    if not backend.availability().available:
        pytest.skip(backend.availability().reason)
    mixture = make_mixture(backend)
    model = Scatters()
    run = torch.compile(model, backend=mixture)
    places, rows = torch.randint(0, 13, (64, 64)), torch.randn(4096, 64, requires_grad=True)
    results = []
    for _ in range(6):
        model.zero_grad()
        rows.grad = None
        loss = run(places, rows)
        loss.backward()
        results.append([loss.detach(), rows.grad, *(item.grad for item in model.parameters())])
    for later in results[1:]:
        assert all(map(torch.equal, later, results[0]))
    eager = model(places, rows)
    torch.testing.assert_close(results[0][0], eager, rtol=1e-4, atol=1e-4)
    assert backend.name in set.union(*owners(mixture))
