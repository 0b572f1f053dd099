"""What the backward needs of a softmax follows from its argument and two numbers per row, where that is cheaper."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as functional

from mixbackend.contracts import CostModel, Estimate, OpView, PlacementError
from mixbackend.cost import costs as costs_module
from mixbackend.partitioner.work import flops_of
from mixbackend.plan.joint_decision import JointDecision
from mixbackend.plan.rematerialization import mark_as_decided

from .softmax_recompute_cases import ByteCosts, fused_pairs

FUSED = fused_pairs("scatter")
HALF, SINGLE, DOUBLE = torch.bfloat16, torch.float32, torch.float64


@dataclasses.dataclass(frozen=True)
class Rates(ByteCosts):
    """A byte takes a nanosecond; arithmetic what is given."""

    flop_s: float = 1e-11

    def op(self, backend: str, view: OpView) -> Estimate:
        return Estimate(self.flop_s * flops_of(view) + (1e-3 if backend == "eager" else 0.0), "prior")


@pytest.fixture
def rates(monkeypatch) -> Callable[[CostModel], None]:
    def use(costs: CostModel) -> None:
        monkeypatch.setattr(costs_module, "cost_model", lambda *arguments, **keywords: costs)

    return use


@pytest.fixture
def mixture(make_mixture, loopback, monkeypatch, rates):
    """All on a backend that fuses whatever is a loop."""
    traits = dataclasses.replace(loopback.traits(), fused=FUSED)
    monkeypatch.setattr(type(loopback), "traits", lambda self: traits)
    rates(Rates())
    return make_mixture(loopback)


def total(result) -> torch.Tensor:
    """A number that depends on every result."""
    results = result if isinstance(result, tuple) else (result,)
    return sum((item.double() * torch.linspace(1, 2, item.numel()).view(item.shape)).sum() for item in results)


def gradients(function, values: Sequence[torch.Tensor], *rest) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Gradients, and what is kept from forward to backward beside the leaves."""
    leaves = [value.detach().clone().requires_grad_() for value in values]
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        result = function(*leaves, *rest)
    total(result).backward()
    given = {item.untyped_storage().data_ptr() for item in (*leaves, *rest) if isinstance(item, torch.Tensor)}
    return [leaf.grad for leaf in leaves], [item for item in kept if item.untyped_storage().data_ptr() not in given]


def ops_of(mixture, place: int) -> Counter:
    graph = mixture.report().to_dict()["graphs"][place]
    return Counter(op for region in graph["regions"] for op, count in region["ops"].items() for _ in range(count))


def is_recomputed(mixture) -> bool:
    softmaxes = {"aten._softmax.default", "aten._log_softmax.default"}
    return ops_of(mixture, 0)["aten.amax.default"] > 0 and not softmaxes & ops_of(mixture, 0).keys()


def assert_as_near_as_eager(function, mixture, values, *rest, dynamic=False) -> list[torch.Tensor]:
    """Held against float64, gradients are about as far off as eager's; returns what was kept."""
    found, kept = gradients(torch.compile(function, backend=mixture, dynamic=dynamic), values, *rest)
    eager, _ = gradients(function, values, *rest)
    wide = [item.double() if isinstance(item, torch.Tensor) and item.is_floating_point() else item for item in rest]
    exact, _ = gradients(function, [value.double() for value in values], *wide)
    for mine, theirs, truth in zip(found, eager, exact, strict=True):
        assert mine.dtype == theirs.dtype and mine.stride() == theirs.stride()
        if mine.dtype == DOUBLE:
            torch.testing.assert_close(mine, truth, rtol=1e-10, atol=1e-12)
            continue
        distance = (theirs.double() - truth).abs().max()
        assert (mine.double() - truth).abs().max() <= 2 * distance + 8 * torch.finfo(mine.dtype).eps * truth.abs().max()
    assert mixture.report().events == ()
    return kept


def widened(value: torch.Tensor) -> torch.Tensor:
    """In float32 at least, as autocast has losses computed; float64 for the reference."""
    return value.to(torch.promote_types(value.dtype, SINGLE))


def test_a_vocabulary_keeps_what_the_product_returned_and_two_numbers_per_row(mixture):
    def loss(hidden, weight, target):
        scores = hidden @ weight
        return functional.cross_entropy(widened(scores[:, :-1].flatten(0, 1)), target)

    rows, classes = 2 * 8, 512
    values = [torch.randn(2, 8, 4, dtype=HALF), torch.randn(4, classes, dtype=HALF)]
    kept = assert_as_near_as_eager(loss, mixture, values, torch.randint(0, classes, (2 * 7,)))
    assert is_recomputed(mixture)
    large = [item for item in kept if item.numel() >= classes * 14]
    assert [(item.dtype, item.numel()) for item in large] == [(HALF, rows * classes)]
    small = [item for item in kept if item.numel() < classes * 14 and item.dtype == SINGLE]
    # The largest value and the logarithm of each row, and the loss's weight of all rows.
    assert sum(item.nbytes for item in small) == 2 * 14 * 4 + 4
    assert ops_of(mixture, 1)["aten.exp.default"] == ops_of(mixture, 1)["aten.amax.default"] == 0


OPTIONS = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"ignore_index": 3},
    {"label_smoothing": 0.2},
    {"weight": torch.linspace(0.5, 2, 64)},
    {"weight": torch.linspace(0.5, 2, 64), "ignore_index": 3, "label_smoothing": 0.1},
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "mean")
@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE, HALF, torch.float16], ids=str)
def test_losses(mixture, options, dtype):
    target = torch.randint(0, 64, (12,))
    target[2] = 3

    def loss(scores, target):
        given = {key: value.to(scores.dtype) if key == "weight" else value for key, value in options.items()}
        return functional.cross_entropy(scores * 2, target, **given)

    assert_as_near_as_eager(loss, mixture, [4 * torch.randn(12, 64).to(dtype)], target)
    assert is_recomputed(mixture)


def test_probabilities_as_targets(mixture):
    target = torch.rand(12, 64).softmax(-1)
    values = [4 * torch.randn(12, 64)]
    assert_as_near_as_eager(lambda x, y: functional.cross_entropy(x * 2, y), mixture, values, target)
    assert is_recomputed(mixture)


def test_a_class_per_pixel(mixture):
    def loss(scores, target):
        return functional.cross_entropy(widened(scores.sin()), target, ignore_index=5)

    values = [torch.randn(2, 48, 5, 7, dtype=HALF)]
    assert_as_near_as_eager(loss, mixture, values, torch.randint(0, 48, (2, 5, 7)))
    assert is_recomputed(mixture)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE, HALF], ids=str)
def test_softmaxes_along_any_dimension(mixture, name, dim, dtype):
    """Between two products; what the second reads is made from it."""

    def function(first, second, third):
        return (getattr(functional, name)(widened(first @ second), dim) * 2).to(first.dtype) @ third

    values = [torch.randn(shape).to(dtype) for shape in ((36, 48, 16), (36, 16, 40), (36, 40, 8))]
    assert_as_near_as_eager(function, mixture, values)
    assert is_recomputed(mixture)


def test_columns_of_a_transposed_argument(mixture):
    def function(first, second):
        return functional.log_softmax((first @ second).t(), 0) * 2

    assert_as_near_as_eager(function, mixture, [torch.randn(48, 16), torch.randn(16, 40)])


def test_large_values_keep_what_tells_them_apart(mixture):
    def loss(scores, target):
        return functional.cross_entropy(scores * 1 + 30000, target)

    assert_as_near_as_eager(loss, mixture, [torch.randn(12, 64)], torch.randint(0, 64, (12,)))


def test_rows_of_minus_infinity(mixture):
    def function(value):
        return functional.softmax(widened(value * 1), -1).sin()

    value = torch.randn(4, 64, dtype=HALF)
    value[1, 5:] = float("-inf")
    value[2] = float("-inf")
    (found,), _ = gradients(torch.compile(function, backend=mixture), [value])
    (expected,), _ = gradients(function, [value])
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert expected[2].isnan().all() and not expected[1].isnan().any()


def test_sizes_that_change(mixture):
    def loss(hidden, weight, target):
        return functional.cross_entropy(widened(hidden @ weight), target)

    compiled = torch.compile(loss, backend=mixture, dynamic=True)
    for rows, classes in ((24, 96), (40, 130), (7, 64)):
        values = [torch.randn(rows, 4, dtype=HALF), torch.randn(4, classes, dtype=HALF)]
        target = torch.randint(0, classes, (rows,))
        found, kept = gradients(compiled, values, target)
        expected, _ = gradients(loss, values, target)
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-3)
        assert max(item.nbytes for item in kept) == 2 * rows * classes
    assert len(mixture.report().graphs) == 2 and is_recomputed(mixture)


def test_a_result_that_is_read_elsewhere_as_well(mixture):
    def function(hidden, weight, target):
        logarithms = functional.log_softmax(widened(hidden @ weight), -1)
        entropy = -(logarithms.exp() * logarithms).sum(-1)
        return functional.nll_loss(logarithms, target), entropy

    values = [torch.randn(24, 16, dtype=HALF), torch.randn(16, 96, dtype=HALF)]
    kept = assert_as_near_as_eager(function, mixture, values, torch.randint(0, 96, (24,)))
    assert is_recomputed(mixture) and max(item.nbytes for item in kept) == 2 * 24 * 96


def test_a_result_that_is_returned_is_there_anyway(mixture):
    """Reading it costs what it costs to read the argument, and to keep that as well costs memory."""

    def function(hidden, weight):
        return functional.log_softmax(hidden @ weight, -1)

    assert_as_near_as_eager(function, mixture, [torch.randn(24, 16), torch.randn(16, 96)])
    assert not is_recomputed(mixture)


def test_an_argument_that_is_given_is_read_again_though_the_result_is_returned(mixture):
    values = [torch.randn(24, 96, dtype=HALF)]
    kept = assert_as_near_as_eager(lambda x: functional.log_softmax(widened(x), -1), mixture, values)
    assert is_recomputed(mixture) and sum(item.numel() for item in kept if item.numel() > 24) == 0


def test_short_rows_have_as_many_statistics(mixture):
    def loss(hidden, weight, target):
        return functional.cross_entropy(hidden @ weight, target)

    assert_as_near_as_eager(loss, mixture, [torch.randn(24, 16), torch.randn(16, 3)], torch.randint(0, 3, (24,)))
    assert not is_recomputed(mixture)


@pytest.mark.parametrize(("flop_s", "recomputed"), [(1e-11, True), (1e-9, False)])
def test_arithmetic_counts(mixture, rates, flop_s, recomputed):
    """A softmax takes an exponent more per element; who computes slowly reads the result."""
    rates(Rates(flop_s))

    def function(first, second, third):
        return functional.softmax(first @ second, -1).sin() @ third

    assert_as_near_as_eager(function, mixture, [torch.randn(24, 16), torch.randn(16, 96), torch.randn(96, 4)])
    assert is_recomputed(mixture) is recomputed


def test_who_fuses_nothing_saves(make_mixture, loopback, rates):
    rates(Rates())
    mixture = make_mixture(loopback)

    def loss(hidden, weight, target):
        return functional.cross_entropy(widened(hidden @ weight), target)

    values = [torch.randn(24, 16, dtype=HALF), torch.randn(16, 96, dtype=HALF)]
    kept = assert_as_near_as_eager(loss, mixture, values, torch.randint(0, 96, (24,)))
    assert not is_recomputed(mixture) and max(item.nbytes for item in kept) == 4 * 24 * 96


def test_users_checkpointing_is_obeyed(mixture):
    def part(value):
        return functional.log_softmax(value.sin(), -1).exp()

    def function(value):
        return torch.utils.checkpoint.checkpoint(part, value, use_reentrant=False) * 2

    assert_as_near_as_eager(function, mixture, [torch.randn(24, 96)])
    assert ops_of(mixture, 0)["aten.amax.default"] == 0


def test_a_decision_about_another_graph_is_refused():
    graph = torch.fx.Graph()
    graph.output(graph.placeholder("x"))
    with pytest.raises(PlacementError, match=r"aten\._softmax\.default@7 should be computed again in the backward"):
        decision = JointDecision("as_traced", (), ("aten._softmax.default@7",))
        mark_as_decided(torch.fx.GraphModule(torch.nn.Module(), graph), decision)
