"""The suite: its entries, and what loading one promises."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec

import pytest
import torch

from mixbackend.benchmarks.models.entry import KEPT_DROPOUT, Entry
from mixbackend.benchmarks.models.registry import find, models
from mixbackend.benchmarks.models.sentence_encoder import sentences, tokenize
from mixbackend.benchmarks.models.torchbench.science import TurbulentKineticEnergy
from mixbackend.benchmarks.models.trees import map_tensors, tensors_in
from mixbackend.benchmarks.one_model import steps
from mixbackend.benchmarks.one_model.accuracy import judge, rule_for


def test_there_are_193_entries_with_unique_names() -> None:
    entries = models()
    assert len({entry.name for entry in entries}) == len(entries) == 193
    assert Counter(entry.family for entry in entries) == {"hf": 67, "timm": 69, "torchbench": 57}
    assert [entry.name for entry in entries if not entry.train] == [
        "pyhpc_equation_of_state",
        "pyhpc_turbulent_kinetic_energy",
    ]


def test_find_knows_every_entry_and_the_demo() -> None:
    assert all(find(entry.name) == entry for entry in models())
    assert find("sentence-encoder").family == "demo"


def test_a_misspelt_name_gets_a_suggestion() -> None:
    with pytest.raises(KeyError, match="did you mean resnet18"):
        find("resnet81")


def test_loading_twice_gives_the_same_values() -> None:
    first, second = find("lennard_jones").load(), find("lennard_jones").load()
    assert all(
        torch.equal(left, right)
        for left, right in zip(first[0].state_dict().values(), second[0].state_dict().values(), strict=True)
    )
    assert torch.equal(first[1][0], second[1][0])


def test_dropout_stays_in_the_module_but_drops_nothing() -> None:
    module, args, kwargs = find("nvidia_deeprecommender").load(train=True)
    assert module.training
    (dropout,) = [part for part in module.modules() if isinstance(part, torch.nn.Dropout)]
    assert dropout.p == KEPT_DROPOUT
    with torch.no_grad():
        trained = module(*args, **kwargs)
        assert torch.equal(trained, module.eval()(*args, **kwargs))


def test_loss_prefers_the_models_own() -> None:
    entry = find("lennard_jones")

    class Output(dict):  # as outputs of transformers: a mapping with attributes
        loss = torch.tensor(3.0)

    assert entry.loss(Output(logits=torch.zeros(2))).item() == 3.0
    assert entry.loss((torch.full((4,), 2.0), [torch.zeros(2), torch.tensor([1])])).item() == 1.0
    with pytest.raises(ValueError, match="no floating-point tensor"):
        entry.loss([torch.tensor([1])])


def test_trees_keep_order_and_nesting() -> None:
    nested = {"a": (torch.tensor(1), [torch.tensor(2)]), "b": "word"}
    assert [tensor.item() for tensor in tensors_in(nested)] == [1, 2]
    doubled = map_tensors(lambda tensor: tensor * 2, nested)
    assert doubled == {"a": (torch.tensor(2), [torch.tensor(4)]), "b": "word"}


def test_thomas_algorithm_solves_its_system() -> None:
    generator = torch.Generator().manual_seed(3)
    below, above = (torch.rand(2, 3, 26, generator=generator, dtype=torch.float64) for _ in range(2))
    centre = 3 + torch.rand(2, 3, 26, generator=generator, dtype=torch.float64)
    right = torch.rand(2, 3, 26, generator=generator, dtype=torch.float64)
    solved = TurbulentKineticEnergy()._solve(below, centre, above, right)
    matrix = torch.diag_embed(centre) + torch.diag_embed(below[..., 1:], -1) + torch.diag_embed(above[..., :-1], 1)
    assert torch.allclose((matrix @ solved[..., None])[..., 0], right)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["maml_omniglot", "soft_actor_critic", "moco"])
def test_a_training_step_agrees_with_itself_and_not_with_a_broken_one(name: str) -> None:
    if name == "moco" and find_spec("torchvision") is None:
        pytest.skip("moco needs torchvision")
    entry = find(name)
    loaded = steps.load(entry, "training")
    step = steps.step_of(entry, "training")
    first, second = (steps.run(entry, "training", loaded, step) for _ in range(2))
    exact = steps.run_exact(entry, "training", loaded)
    rule = rule_for(entry.family, entry.name, "training")
    assert exact is not None
    assert judge(first, second, second, exact, rule).verdict == "pass"

    def broken(module: torch.nn.Module, args: tuple, kwargs: dict) -> object:
        produced = step(module, args, kwargs)
        with torch.no_grad():
            max(module.parameters(), key=lambda item: item.numel()).grad.mul_(1.5)
        return produced

    wrong = judge(first, second, steps.run(entry, "training", loaded, broken), exact, rule)
    assert wrong.verdict == "fail_accuracy"
    assert "grad" in str(wrong.mismatches[0]) or "[2]" in wrong.mismatches[0].path


def test_what_the_first_call_leaves_behind_shows_in_the_second() -> None:
    entry = find("lennard_jones")
    loaded = steps.load(entry, "inference")
    step = steps.step_of(entry, "inference")
    calls = []

    def stale(module: torch.nn.Module, args: tuple, kwargs: dict) -> object:
        calls.append(None)
        return step(module, args, kwargs) + (len(calls) - 1)

    results = steps.run(entry, "inference", loaded, step)
    assert len(results) == steps.CALLS == 2
    judgement = judge(results, results, steps.run(entry, "inference", loaded, stale), None, rule_for(
        entry.family, entry.name, "inference"))  # fmt: skip
    assert {mismatch.path for mismatch in judgement.mismatches} == {"[1]"}


def test_torchbench_is_checked_in_evaluation_mode_as_upstream_does() -> None:
    def modes(entry: Entry) -> tuple[bool, bool]:
        return tuple(steps.load(entry, "training", always_training_mode=always)[0].training for always in (False, True))

    assert modes(find("phlippe_resnet")) == (False, True)
    assert modes(find("tts_angular")) == (True, True)


def test_sentences_are_balanced_and_unique() -> None:
    labelled = sentences()
    assert len(set(labelled)) == len(labelled) == 300
    assert set(Counter(topic for topic, _ in labelled).values()) == {50}
    assert all(sentence.strip() == sentence and sentence for _, sentence in labelled)


def test_batches_hold_every_sentence_once_with_little_padding() -> None:
    pytest.importorskip("tokenizers")
    texts = [sentence for _, sentence in sentences()]
    batches = tokenize(texts, 32)
    assert sorted(row for batch in batches for row in batch.rows) == list(range(300))
    assert all(batch.mask.sum(1).max() == batch.ids.size(1) for batch in batches)
    assert all((batch.ids[batch.mask == 0] == 0).all() for batch in batches)
    padding = sum((batch.mask == 0).sum().item() for batch in batches)
    assert padding < 0.15 * sum(batch.mask.numel() for batch in batches)
