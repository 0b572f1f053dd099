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
ELECTRA: Settings = {**BERT, "embedding_size": 64}
FNET: Settings = {key: value for key, value in BERT.items() if key != "num_attention_heads"}
TROCR: Settings = {key: value for key, value in BART.items() if not key.startswith("encoder")}
XGLM: Settings = {
    "d_model": 256,
    "num_layers": 2,
    "attention_heads": 4,
    "ffn_dim": 512,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
}
MODERN_BERT: Settings = {
    **BERT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "cls_token_id": 1,
    "eos_token_id": 2,
    "sep_token_id": 2,
    "max_position_embeddings": 256,
}
ROUTED: Settings = {**DECODER, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
CLIP: Settings = {
    "text_config": {**BERT, "eos_token_id": 2, "max_position_embeddings": LENGTH},
    "vision_config": {**BERT, "image_size": 96, "patch_size": 16},
    "projection_dim": 128,
}
SEGFORMER: Settings = {"depths": [1, 1, 1, 1], "hidden_sizes": [32, 64, 96, 128], "decoder_hidden_size": 64}
WAV2VEC2: Settings = {**BERT, "conv_dim": [64] * 7, "num_conv_pos_embeddings": 16, "apply_spec_augment": False}
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
    Card("AlbertForQuestionAnswering", {**BERT, "embedding_size": 64}),
    Card("AllenaiLongformerBase", LONGFORMER, "LongformerForMaskedLM"),
    Card("BartForCausalLM", BART),
    Card("BartForConditionalGeneration", BART),
    Card("BertForMaskedLM", BERT),
    Card("BertForQuestionAnswering", BERT),
    Card("BlenderbotForCausalLM", BART),
    Card("BlenderbotForConditionalGeneration", BART, official="skip"),
    Card("BlenderbotSmallForCausalLM", BART),
    Card("BlenderbotSmallForConditionalGeneration", BART),
    Card("CamemBert", BERT, "CamembertForMaskedLM"),
    Card("DebertaForMaskedLM", BERT),
    Card("DebertaForQuestionAnswering", BERT),
    Card("DebertaV2ForMaskedLM", BERT),
    Card("DebertaV2ForQuestionAnswering", BERT),
    Card("DistilBertForMaskedLM", DISTILBERT),
    Card("DistilBertForQuestionAnswering", DISTILBERT),
    Card("DistillGPT2", GPT2, "GPT2LMHeadModel"),
    Card("ElectraForCausalLM", {**ELECTRA, "is_decoder": True}),
    Card("ElectraForQuestionAnswering", ELECTRA),
    Card("GPT2ForSequenceClassification", {**GPT2, "pad_token_id": 0}),
    Card("GPTJForCausalLM", GPTJ, official="skip"),
    Card("GPTJForQuestionAnswering", GPTJ, official="skip"),
    Card("GPTNeoForCausalLM", GPT_NEO, official="skip"),
    Card("GPTNeoForSequenceClassification", {**GPT_NEO, "pad_token_id": 0}, official="skip"),
    Card("GoogleFnet", FNET, "FNetForMaskedLM"),
    Card("LayoutLMForMaskedLM", BERT),
    Card("LayoutLMForSequenceClassification", BERT),
    Card("M2M100ForConditionalGeneration", BART),
    Card("MBartForCausalLM", BART),
    Card("MBartForConditionalGeneration", BART),
    Card("MT5ForConditionalGeneration", T5),
    Card("MegatronBertForCausalLM", {**BERT, "is_decoder": True}),
    Card("MegatronBertForQuestionAnswering", BERT),
    Card("MobileBertForMaskedLM", MOBILEBERT),
    Card("MobileBertForQuestionAnswering", MOBILEBERT),
    Card("OPTForCausalLM", OPT),
    Card("PLBartForCausalLM", BART),
    Card("PLBartForConditionalGeneration", BART),
    Card("PegasusForCausalLM", BART),
    Card("PegasusForConditionalGeneration", BART),
    Card("RobertaForCausalLM", {**BERT, "pad_token_id": 1, "is_decoder": True}),
    Card("RobertaForQuestionAnswering", {**BERT, "pad_token_id": 1}),
    Card("T5ForConditionalGeneration", T5),
    Card("T5Small", {**T5, "num_layers": 3, "d_model": 128}, "T5ForConditionalGeneration"),
    Card("TrOCRForCausalLM", TROCR),
    Card("XGLMForCausalLM", XGLM, official="skip"),
    Card("XLNetLMHeadModel", XLNET),
    Card("YituTechConvBert", BERT, "ConvBertForMaskedLM"),
    Card("Llama-3.2", DECODER, "LlamaForCausalLM", "new"),
    Card("Qwen3", DECODER, "Qwen3ForCausalLM", "new"),
    Card("Mistral", DECODER, "MistralForCausalLM", "new"),
    Card("gemma-3", DECODER, "Gemma3ForCausalLM", "new"),
    Card("gpt-oss", GPT_OSS, "GptOssForCausalLM", "new"),
    Card("Qwen2.5", DECODER, "Qwen2ForCausalLM", "new"),
    Card("Qwen3-MoE", ROUTED, "Qwen3MoeForCausalLM", "new"),
    Card("gemma-2", {**DECODER, "sliding_window": 64}, "Gemma2ForCausalLM", "new"),
    Card("Phi-3", DECODER, "Phi3ForCausalLM", "new"),
    Card("OLMo-2", DECODER, "Olmo2ForCausalLM", "new"),
    Card("Mixtral", {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2}, "MixtralForCausalLM", "new"),
    Card("granite", DECODER, "GraniteForCausalLM", "new"),
    Card("ModernBERT", MODERN_BERT, "ModernBertForMaskedLM", "new"),
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


def _clip_inputs(configuration: Any) -> dict[str, Any]:
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": ids, "pixel_values": torch.randn(BATCH, 3, 96, 96), "return_loss": True}


def _segformer_inputs(configuration: Any) -> dict[str, torch.Tensor]:
    labels = torch.randint(0, configuration.num_labels, (BATCH, 64, 64))
    return {"pixel_values": torch.randn(BATCH, 3, 64, 64), "labels": labels}


def _sound_inputs(configuration: Any) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(BATCH, 8000), "labels": torch.randint(0, configuration.num_labels, (BATCH,))}


def _seen_and_heard() -> tuple[Entry, ...]:
    """Models of today that read images or sound."""
    made = {
        "whisper-tiny": partial(build, "WhisperForConditionalGeneration", WHISPER, whisper_inputs),
        "clip": partial(build, "CLIPModel", CLIP, _clip_inputs),
        "segformer": partial(build, "SegformerForSemanticSegmentation", SEGFORMER, _segformer_inputs),
        "wav2vec2": partial(build, "Wav2Vec2ForSequenceClassification", WAV2VEC2, _sound_inputs),
    }
    return tuple(Entry(name, "hf", make, "transformers", "new") for name, make in made.items())


def entries() -> tuple[Entry, ...]:
    """The family, in the order of the cards."""
    cards = [
        Entry(card.name, "hf", partial(build, card.architecture or card.name, card.settings), "transformers",
              card.official)
        for card in CARDS
    ]  # fmt: skip
    return (*cards, *_seen_and_heard())
