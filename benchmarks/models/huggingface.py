"""Hugging Face models with their real classes, at width 256, two to four layers and random weights.

Place: the ``hf`` family of the suite, and the transformers that TorchBench contains.
Invariants: configurations ask for no cache, and their dropout probabilities are ``KEPT_DROPOUT``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from mixbackend.benchmarks.models.entry import KEPT_DROPOUT, Entry, Loaded, Official
from mixbackend.benchmarks.models.torchvision_shim import enable_torchvision

VOCABULARY, LENGTH, BATCH = 2000, 128, 2

Settings = Mapping[str, Any]
Inputs = Callable[[Any], dict[str, torch.Tensor]]
"""Keyword inputs from the finished configuration, for models that do not take token ids and labels."""

BERT: Settings = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "vocab_size": VOCABULARY,
}
BART: Settings = {
    "d_model": 256,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
}
T5: Settings = {"d_model": 256, "d_kv": 64, "d_ff": 512, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY}
GPT2: Settings = {
    "n_embd": 256,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 256,
    "vocab_size": VOCABULARY,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
GPTJ: Settings = {
    "n_embd": 256,
    "n_layer": 2,
    "n_head": 4,
    "rotary_dim": 32,
    "vocab_size": VOCABULARY,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
GPT_NEO: Settings = {
    "hidden_size": 256,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": VOCABULARY,
    "attention_types": [[["global", "local"], 1]],
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
DISTILBERT: Settings = {"dim": 256, "n_layers": 2, "n_heads": 4, "hidden_dim": 512, "vocab_size": VOCABULARY}
DECODER: Settings = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 256,
}
OPT: Settings = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 512,
    "vocab_size": VOCABULARY,
    "word_embed_proj_dim": 256,
    "max_position_embeddings": 256,
}
WHISPER: Settings = {
    **BART,
    "max_source_positions": 100,
    "max_target_positions": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
}
LONGFORMER: Settings = {**BERT, "attention_window": [32, 32], "max_position_embeddings": 260, "pad_token_id": 1}
MOBILEBERT: Settings = {"num_hidden_layers": 3, "vocab_size": VOCABULARY}
XLNET: Settings = {"d_model": 256, "n_layer": 2, "n_head": 4, "d_inner": 512, "vocab_size": VOCABULARY}
GPT_OSS: Settings = {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2}


@dataclass(frozen=True, slots=True)
class Card:
    """One row of the family: the official name, settings, the class where it is called differently, and status."""

    name: str
    settings: Settings
    architecture: str = ""
    official: Official = "2.0"


CARDS = (
    Card("AlbertForMaskedLM", {**BERT, "embedding_size": 64}),
    Card("AllenaiLongformerBase", LONGFORMER, "LongformerForMaskedLM"),
    Card("BartForCausalLM", BART),
    Card("BlenderbotForCausalLM", BART),
    Card("BlenderbotForConditionalGeneration", BART, official="skip"),
    Card("BlenderbotSmallForCausalLM", BART),
    Card("BlenderbotSmallForConditionalGeneration", BART),
    Card("CamemBert", BERT, "CamembertForMaskedLM"),
    Card("DebertaForQuestionAnswering", BERT),
    Card("DebertaV2ForMaskedLM", BERT),
    Card("DistilBertForMaskedLM", DISTILBERT),
    Card("DistilBertForQuestionAnswering", DISTILBERT),
    Card("GPT2ForSequenceClassification", {**GPT2, "pad_token_id": 0}),
    Card("GPTJForQuestionAnswering", GPTJ, official="skip"),
    Card("GPTNeoForSequenceClassification", {**GPT_NEO, "pad_token_id": 0}, official="skip"),
    Card("LayoutLMForSequenceClassification", BERT),
    Card("M2M100ForConditionalGeneration", BART),
    Card("MBartForCausalLM", BART),
    Card("MBartForConditionalGeneration", BART),
    Card("MT5ForConditionalGeneration", T5),
    Card("MegatronBertForQuestionAnswering", BERT),
    Card("MobileBertForMaskedLM", MOBILEBERT),
    Card("MobileBertForQuestionAnswering", MOBILEBERT),
    Card("OPTForCausalLM", OPT),
    Card("PLBartForConditionalGeneration", BART),
    Card("PegasusForConditionalGeneration", BART),
    Card("RobertaForCausalLM", {**BERT, "pad_token_id": 1, "is_decoder": True}),
    Card("T5ForConditionalGeneration", T5),
    Card("T5Small", {**T5, "num_layers": 3, "d_model": 128}, "T5ForConditionalGeneration"),
    Card("XLNetLMHeadModel", XLNET),
    Card("Llama-3.2", DECODER, "LlamaForCausalLM", "new"),
    Card("Qwen3", DECODER, "Qwen3ForCausalLM", "new"),
    Card("Mistral", DECODER, "MistralForCausalLM", "new"),
    Card("gemma-3", DECODER, "Gemma3ForCausalLM", "new"),
    Card("gpt-oss", GPT_OSS, "GptOssForCausalLM", "new"),
)


def build(architecture: str, settings: Settings, inputs: Inputs | None = None) -> Loaded:
    """A transformers model by class name, with one batch of inputs that include labels."""
    enable_torchvision()
    import transformers

    model_class = getattr(transformers, architecture)
    configuration = model_class.config_class(**settings)
    for key, value in vars(configuration).items():
        if "drop" in key and isinstance(value, float) and value > 0:
            setattr(configuration, key, KEPT_DROPOUT)
    if getattr(configuration, "use_cache", False):
        configuration.use_cache = False
    module = model_class(configuration)
    make_inputs = inputs if inputs is not None else partial(_token_inputs, architecture)
    return module, (), make_inputs(configuration)


def _token_inputs(architecture: str, configuration: Any) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    if "Roberta" in architecture:
        ids.fill_(0)  # as upstream: positions come from the ids, and these hold no padding
    if "Bart" in architecture:
        ids[:, -1] = configuration.eos_token_id
    inputs = {"input_ids": ids}
    if architecture.startswith(("T5", "MT5", "M2M100")) or architecture == "BlenderbotForConditionalGeneration":
        inputs["decoder_input_ids"] = ids
    if architecture.endswith("QuestionAnswering"):
        start, end = torch.randint(0, LENGTH, (2, BATCH)).unbind()
        return {**inputs, "start_positions": start, "end_positions": end}
    if architecture.endswith("SequenceClassification"):
        return {**inputs, "labels": torch.randint(0, configuration.num_labels, (BATCH,))}
    return {**inputs, "labels": torch.randint(0, VOCABULARY, (BATCH, LENGTH))}


def whisper_inputs(configuration: Any) -> dict[str, torch.Tensor]:
    """Random mel spectrograms and target tokens."""
    frames = 2 * configuration.max_source_positions
    return {
        "input_features": torch.randn(BATCH, configuration.num_mel_bins, frames),
        "labels": torch.randint(0, VOCABULARY, (BATCH, 64)),
    }


def entries() -> tuple[Entry, ...]:
    """The family, in the order of the cards."""
    whisper = partial(build, "WhisperForConditionalGeneration", WHISPER, whisper_inputs)
    cards = [
        Entry(card.name, "hf", partial(build, card.architecture or card.name, card.settings), "transformers",
              card.official)
        for card in CARDS
    ]  # fmt: skip
    return (*cards, Entry("whisper-tiny", "hf", whisper, "transformers", "new"))
