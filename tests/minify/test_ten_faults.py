"""Ten faults, planted in one op each, in models of the suite: the script that is left has at most three ops.

By day three of them, at small models.
"""

from __future__ import annotations

import pytest
import torch
from faulty_backends import (
    EndsCompiling,
    EndsRunning,
    Faulty,
    HangsRunning,
    RaisesOnPairs,
    RaisesRunning,
    SlowNorm,
    WrongGelu,
    WrongLongRows,
    WrongNormGradient,
    WrongSoftmax,
    WrongWeightGradient,
)

import mixbackend
from mixbackend import registry
from mixbackend.benchmarks.models.registry import find

CASES = [
    pytest.param(WrongWeightGradient, "functorch_dp_cifar10", "wrong", 1),
    pytest.param(WrongGelu, "DistilBertForMaskedLM", "wrong", 1),
    pytest.param(WrongSoftmax, "T5Small", "wrong", 1),
    pytest.param(WrongNormGradient, "nanogpt", "wrong", 1),
    pytest.param(EndsRunning, "resnet18", "crashes", 1),
    pytest.param(WrongLongRows, "GPT2ForSequenceClassification", "wrong", 1),
    pytest.param(EndsCompiling, "mobilenet_v2", "crashes", 1),
    pytest.param(RaisesOnPairs, "timm_efficientnet", "raises", 2),
    pytest.param(HangsRunning, "DistilBertForMaskedLM", "hangs", 1),
    pytest.param(SlowNorm, "DistilBertForMaskedLM", "slow", 1),
    pytest.param(RaisesRunning, "maml_omniglot", "raises", 1),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kind", "model", "seen", "ops"), CASES)
def test_a_planted_fault_is_left_alone(kind: type[Faulty], model: str, seen: str, ops: int) -> None:
    train = kind.phase != ""
    module, args, kwargs = find(model).load(train=train)
    config = {"backends": [kind.name, "eager"], "select": "off"}
    with registry.isolated_registry(kind, discover=True), torch.set_grad_enabled(train):
        found = mixbackend.minify(module, *args, config=config, timeout_s=20.0, **kwargs)
    assert found.smallest is not None, str(found)
    assert found.smallest.verdict.kind == seen and found.smallest.ops == ops <= 3, str(found)
    assert kind.op in dict(found.smallest.names) and kind.phase in ("", found.smallest.phase)
    assert found.reproduces, found.script
