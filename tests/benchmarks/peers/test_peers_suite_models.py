"""Models of the suite as cases of the comparison: the choice, tensors by position, losses, references."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

from mixbackend.benchmarks.models.entry import Entry
from mixbackend.benchmarks.models.registry import find
from mixbackend.benchmarks.models.trees import tensors_in
from mixbackend.benchmarks.one_model.accuracy import Phase
from mixbackend.benchmarks.peers import executors, reference, suite_models
from mixbackend.benchmarks.peers.models import MODELS
from mixbackend.benchmarks.peers.request import OWN_BATCH, PeerCase
from mixbackend.benchmarks.peers.suite_models import CHOICE, TRAINED, find_model, is_of_suite


def test_the_choice_is_24_of_all_families_and_eight_that_train() -> None:
    families = Counter(find(name).family for name in CHOICE)
    assert families == {"hf": 8, "timm": 8, "torchbench": 8}
    assert len(TRAINED) == 8 and all(find(name).train for name in TRAINED)


def test_both_kinds_of_models_are_found() -> None:
    assert find_model("minilm") is MODELS["minilm"] and not is_of_suite("minilm")
    assert find_model("suite:resnet18").training_batch == OWN_BATCH and is_of_suite("suite:resnet18")
    with pytest.raises(KeyError, match="no model is called 'resnet18'"):
        find_model("resnet18")
    with pytest.raises(KeyError, match="no model 'resnet17' in the suite"):
        find_model("suite:resnet17")


@pytest.mark.parametrize("name", ["T5Small", "lennard_jones"])
def test_tensors_go_by_position_and_the_result_is_the_models_own(name: str) -> None:
    module, inputs = find_model(f"suite:{name}").load(OWN_BATCH, train=False, dtype=torch.float32)
    again, args, kwargs = find(name).load()
    with torch.no_grad():
        found, expected = list(tensors_in(module(*inputs))), list(tensors_in(again(*args, **kwargs)))
    assert found and len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_a_model_that_takes_other_things_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = Entry("odd", "torchbench", lambda: (nn.Identity(), ([torch.ones(1)],), {}), "own")
    monkeypatch.setattr(suite_models, "find", lambda name: odd)
    with pytest.raises(ValueError, match=r"odd takes other things than tensors \(list\)"):
        find_model("suite:odd").load(OWN_BATCH, train=False, dtype=torch.float32)


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_eager_agrees_with_its_reference(tmp_path: Path, phase: Phase) -> None:
    case = PeerCase("suite:phlippe_resnet", OWN_BATCH, phase, "float32")
    model = find_model(case.model)
    work = reference.make(model, case, tmp_path)
    assert work.flops > 0 and work.bytes > 0
    module, inputs = reference.load(model, case)
    if phase == "training":
        executor = executors.training("eager", None, module, inputs, model.loss)
    else:
        executor = executors.inference("eager", None, module, inputs, 1)
    found = executor.results(executor.run())
    assert reference.mismatches(found, reference.read(tmp_path), case) == []
    assert ("loss" in found) == (phase == "training")
