"""Hugging Face's Trainer: a model that compiled itself in place, and one that was compiled before."""

from __future__ import annotations

import pytest
import torch

from .held_against_eager import as_it_is, hold_report, hold_results, parameters_of

pytest.importorskip("accelerate", reason="accelerate is not installed, which Trainer needs")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")


def _trained(folder, dtype, wrap=as_it_is, mixture=None):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=3,
    )
    model = transformers.BertForSequenceClassification(config).to(dtype)
    if mixture is not None:
        model.compile(backend=mixture)
    generator = torch.Generator().manual_seed(1)
    rows = [
        {"input_ids": torch.randint(0, 64, (12,), generator=generator), "labels": torch.tensor(number % 3)}
        for number in range(16)
    ]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        num_train_epochs=1,
        learning_rate=1e-2,
        optim="sgd",
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        # A compiled model's forward does not tell the names of its arguments.
        remove_unused_columns=False,
    )
    trainer = transformers.Trainer(model=wrap(model), args=arguments, train_dataset=rows)
    trainer.train()
    found = trainer.predict(rows[:6]).predictions
    # Of a compiled model Trainer keeps every output, the loss as well.
    logits = found[-1] if isinstance(found, tuple) else found
    return [*parameters_of(model), torch.from_numpy(logits)]


@pytest.mark.nightly
def test_trains_a_model_that_compiled_itself(mixture, tmp_path):
    results = _trained(tmp_path, torch.float32, mixture=mixture)
    hold_results(results, _trained(tmp_path, torch.float32), _trained(tmp_path, torch.float64))
    hold_report(mixture)


def test_trains_a_compiled_model(mixture, tmp_path):
    results = _trained(tmp_path, torch.float32, lambda model: torch.compile(model, backend=mixture))
    hold_results(results, _trained(tmp_path, torch.float32), _trained(tmp_path, torch.float64))
    hold_report(mixture)


def test_a_compiled_model_is_saved_as_it_would_be_in_eager(mixture, tmp_path):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    model = transformers.BertModel(config).eval()
    model.compile(backend=mixture)
    ids = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        expected = model(ids).last_hidden_state
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        again = transformers.BertModel.from_pretrained(tmp_path).eval()(ids).last_hidden_state
    torch.testing.assert_close(expected, again)
    hold_report(mixture)
