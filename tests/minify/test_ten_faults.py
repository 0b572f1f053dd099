"""Ten faults and more, planted in one op each, in models of the suite: the script that is left has at most three ops.

By day three, in the smallest models.
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
    RaisesOnTanh,
    RaisesRunning,
    SlowNorm,
    SlowTanh,
    WrongGelu,
    WrongLongRows,
    WrongNormGradient,
    WrongSoftmax,
    WrongTanhGradient,
    WrongWeightGradient,
)

import mixbackend
from mixbackend import registry
from mixbackend.benchmarks.models.registry import find

BY_DAY = [
    (WrongTanhGradient, "lennard_jones", "wrong", 1),
]
BY_NIGHT = [
    (RaisesOnTanh, "lennard_jones", "raises", 1),
    (SlowTanh, "lennard_jones", "slow", 1),
    (WrongWeightGradient, "functorch_dp_cifar10", "wrong", 1),
    (WrongGelu, "DistilBertForMaskedLM", "wrong", 1),
    (WrongSoftmax, "T5Small", "wrong", 1),
    (WrongNormGradient, "nanogpt", "wrong", 1),
    (EndsRunning, "resnet18", "crashes", 1),
    (WrongLongRows, "GPT2ForSequenceClassification", "wrong", 1),
    (EndsCompiling, "mobilenet_v2", "crashes", 1),
    (RaisesOnPairs, "timm_efficientnet", "raises", 2),
    (HangsRunning, "DistilBertForMaskedLM", "hangs", 1),
    (SlowNorm, "DistilBertForMaskedLM", "slow", 1),
    (RaisesRunning, "maml_omniglot", "raises", 1),
]


CASES = [*BY_DAY, *(pytest.param(*case, marks=pytest.mark.nightly) for case in BY_NIGHT)]


@pytest.mark.parametrize(("kind", "model", "seen", "ops"), CASES)
def test_a_planted_fault_is_left_alone(kind: type[Faulty], model: str, seen: str, ops: int) -> None:
    train = kind.phase != ""
    module, args, kwargs = find(model).load(train=train)
    rules = [{"match": {}, "prefer": kind.name, "factor": 1e-6}]
    config = {"backends": [kind.name, "eager"], "rules": rules, "select": "off"}
    with registry.isolated_registry(kind, discover=True), torch.set_grad_enabled(train):
        found = mixbackend.minify(module, *args, config=config, timeout_s=20.0, **kwargs)
    assert found.smallest is not None, str(found)
    assert found.smallest.verdict.kind == seen and found.smallest.ops == ops <= 3, str(found)
    assert kind.op in dict(found.smallest.names) and kind.phase in ("", found.smallest.phase)
    assert found.reproduces, found.script
