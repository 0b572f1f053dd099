"""A backend that knows nothing but sixty prims runs whole models, forward and backward."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from mixbackend_prims import KERNELS, LIBRARY, PRIMS, PrimsBackend

import mixbackend
from mixbackend.backends.eager import EagerBackend
from mixbackend.benchmarks.models.torchvision_shim import enable_torchvision
from mixbackend.contracts import COPY_INTO, ErrorBudget, Unsupported, check_backend, operators_of
from mixbackend.contracts.asked import ask
from mixbackend.contracts.numerics import find_deviation
from mixbackend.graph.trace import trace_region
from mixbackend.registry import isolated_registry

BUDGET = ErrorBudget()


def resnet18() -> tuple[torch.nn.Module, torch.Tensor]:
    enable_torchvision()
    from torchvision.models import resnet18 as built

    return built(num_classes=10), torch.randn(2, 3, 64, 64)


class BertLayer(torch.nn.Module):
    """One layer as transformers has it, without dropout: random numbers belong to eager."""

    def __init__(self) -> None:
        super().__init__()
        enable_torchvision()
        from transformers.models.bert.modeling_bert import BertConfig
        from transformers.models.bert.modeling_bert import BertLayer as Layer

        sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
        config = BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        config._attn_implementation = "sdpa"
        self.layer = Layer(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.layer(x)
        return result if isinstance(result, torch.Tensor) else result[0]


def bert_layer() -> tuple[torch.nn.Module, torch.Tensor]:
    return BertLayer(), torch.randn(2, 6, 32)


def _step(function, model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Result, gradients and buffers of one training step."""
    result = function(x)
    (result.square().sum() * 1e-2).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [result.detach(), *gradients, *model.buffers()]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [resnet18, bert_layer])
def test_every_op_of_a_training_step_runs_on_it(make):
    torch.manual_seed(0)
    model, x = make()
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    expected = _step(eager, eager, x)
    reference = _step(exact, exact, x.double())
    rules = [{"match": {}, "require": "prims"}]
    with isolated_registry(PrimsBackend(), EagerBackend()):
        mixture = mixbackend.auto({"backends": ["prims", "eager"], "rules": rules, "on_failure": "raise"})
        results = _step(torch.compile(model, backend=mixture), model, x)
        report = mixture.report().to_dict()
    assert {region["backend"] for graph in report["graphs"] for region in graph["regions"]} == {"prims"}
    assert {graph["phase"] for graph in report["graphs"]} == {"forward", "backward"}
    assert report["events"] == []
    wrong = [
        find_deviation(place, *three, BUDGET)
        for place, three in enumerate(zip(results, expected, reference, strict=True))
    ]
    assert [deviation for deviation in wrong if deviation is not None] == []


def test_its_table_is_a_part_of_the_list_of_the_level():
    assert len(PRIMS) <= 60
    assert set(KERNELS) - {COPY_INTO} <= operators_of("prims")
    assert len(LIBRARY.split()) <= 10


def test_its_module_is_short():
    module = Path(__file__).parents[2] / "examples/prims_backend/src/mixbackend_prims/__init__.py"
    assert len(module.read_text().splitlines()) <= 150


def test_a_refusal_names_the_prim():
    region = trace_region(torch.special.i0, [torch.randn(4)])
    verdict = ask(check_backend(PrimsBackend())).judge(region.views[0])
    told = "aten.i0.default becomes prims.bessel_i0.default: no rule for prims.bessel_i0.default"
    assert verdict == Unsupported("decomposition", told)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_region_serves_other_sizes(dynamic):
    def piece(x, y):
        return torch.softmax(x * 2, -1) + y.sum(), torch.nn.functional.pad(x, (1, 2)).amax(0)

    region = trace_region(piece, [torch.randn(6, 8), torch.randn(4)], dynamic=dynamic)
    compiled = ask(PrimsBackend()).compile(region)
    x, y = (torch.randn(9, 15), torch.randn(5)) if dynamic else (torch.randn(6, 8), torch.randn(4))
    given = {"arg0_1": x, "arg1_1": y}
    inputs = [given.get(item.name) for item in region.inputs]
    for mine, eager in zip(compiled.run(inputs), piece(x, y), strict=True):
        torch.testing.assert_close(mine, eager)


def test_it_proves_what_it_claims_of_layouts_and_of_numbers():
    ops = ("region layer norm", "region silu", "logsumexp", "split_with_sizes")
    certificate = mixbackend.certify(PrimsBackend(), ops=ops, quick=True, jobs=0)
    assert certificate.passed, certificate.to_markdown()
