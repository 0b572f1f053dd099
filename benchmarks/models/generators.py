"""Models that generate text, with their real classes, two narrow layers and random weights.

Place: what ``mixbackend.benchmarks.generators`` runs; not counted in the suite: its models ask for no cache.
Input: a name and a seed. Output: a model in evaluation mode, and prompts for it.
Invariants: nothing is downloaded; no end token, so that every answer has the length that was asked for; weights are
wide enough that no two tokens of an answer are equally likely.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from mixbackend.benchmarks.models.torchvision_shim import enable_torchvision

VOCABULARY = 320
POSITIONS = 2304
"""More than the longest prompt of the checks, 2,048 tokens, and its answer."""

Settings = Mapping[str, Any]

_TOKENS: Settings = {
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,  # tied ones repeat the last token for ever
}
DECODER: Settings = {
    **_TOKENS,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.2,
}
SLIDING: Settings = {**DECODER, "sliding_window": 48}
EXPERTS: Settings = {**SLIDING, "num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED: Settings = {**DECODER, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
GPT2: Settings = {
    **_TOKENS,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": POSITIONS,
    "initializer_range": 0.2,
}
BLOOM: Settings = {**_TOKENS, "hidden_size": 64, "n_layer": 2, "n_head": 4, "initializer_range": 0.2}
OPT: Settings = {**DECODER, "ffn_dim": 128, "word_embed_proj_dim": 64, "init_std": 0.2}
PARTIAL: Settings = {**DECODER, "partial_rotary_factor": 0.5}
FALCON: Settings = {**{key: value for key, value in DECODER.items() if key != "head_dim"}, "multi_query": True}
SEQUENCES: Settings = {
    **_TOKENS,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": POSITIONS,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
    "init_std": 0.2,
}
T5: Settings = {
    **_TOKENS,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "initializer_factor": 2.0,
}
WHISPER: Settings = {
    **SEQUENCES,
    "max_source_positions": 100,
    "max_target_positions": POSITIONS,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
WHISPER_TINY: Settings = {
    **WHISPER,
    "vocab_size": 51_865,
    "d_model": 384,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "init_std": 0.05,
}
T5_SMALL: Settings = {
    **T5,
    "vocab_size": 32_128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "initializer_factor": 1.0,
}


@dataclass(frozen=True, slots=True)
class Generator:
    """A model that generates.

    Attributes:
        name: unique in the set.
        architecture: class of transformers.
        settings: of its configuration.
        full_size: as large as the published model of that name; not among those that are run by default.
    """

    name: str
    architecture: str
    settings: Settings = field(repr=False)
    full_size: bool = False

    def model(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
        """The model in evaluation mode, with weights of this seed."""
        enable_torchvision()
        import transformers

        model_class = getattr(transformers, self.architecture)
        torch.manual_seed(seed)
        model = model_class(model_class.config_class(**self.settings)).to(dtype).eval()
        model.generation_config.forced_eos_token_id = None
        return model

    def prompt(self, model: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
        """Keyword inputs of ``generate``: token ids and their mask, or sound."""
        vocabulary = self.settings["vocab_size"]
        generator = torch.Generator().manual_seed(1000 * batch + length)
        ids = torch.randint(3, vocabulary, (batch, length), generator=generator)
        if not self.architecture.startswith("Whisper"):
            return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        frames = 2 * model.config.max_source_positions
        sound = torch.randn(batch, model.config.num_mel_bins, frames, generator=generator)
        return {"input_features": sound.to(model.dtype), "decoder_input_ids": ids}


GENERATORS = (
    Generator("llama", "LlamaForCausalLM", DECODER),
    Generator("qwen2", "Qwen2ForCausalLM", DECODER),
    Generator("qwen3", "Qwen3ForCausalLM", DECODER),
    Generator("qwen3-moe", "Qwen3MoeForCausalLM", ROUTED),
    Generator("gemma", "GemmaForCausalLM", DECODER),
    Generator("gemma2", "Gemma2ForCausalLM", SLIDING),
    Generator("gemma3", "Gemma3ForCausalLM", SLIDING),
    Generator("mistral", "MistralForCausalLM", SLIDING),
    Generator("mixtral", "MixtralForCausalLM", EXPERTS),
    Generator("phi", "PhiForCausalLM", PARTIAL),
    Generator("phi3", "Phi3ForCausalLM", DECODER),
    Generator("stablelm", "StableLmForCausalLM", PARTIAL),
    Generator("olmo2", "Olmo2ForCausalLM", DECODER),
    Generator("cohere", "CohereForCausalLM", DECODER),
    Generator("gpt2", "GPT2LMHeadModel", GPT2),
    Generator("gpt-neox", "GPTNeoXForCausalLM", DECODER),
    Generator("gpt-j", "GPTJForCausalLM", {**GPT2, "rotary_dim": 8}),
    Generator("opt", "OPTForCausalLM", OPT),
    Generator("bloom", "BloomForCausalLM", BLOOM),
    Generator("falcon", "FalconForCausalLM", FALCON),
    Generator("t5", "T5ForConditionalGeneration", T5),
    Generator("bart", "BartForConditionalGeneration", SEQUENCES),
    Generator("mbart", "MBartForConditionalGeneration", SEQUENCES),
    Generator("marian", "MarianMTModel", SEQUENCES),
    Generator("pegasus", "PegasusForConditionalGeneration", SEQUENCES),
    Generator("whisper", "WhisperForConditionalGeneration", WHISPER),
    Generator("whisper-tiny", "WhisperForConditionalGeneration", WHISPER_TINY, full_size=True),
    Generator("t5-small", "T5ForConditionalGeneration", T5_SMALL, full_size=True),
)


def generator_named(name: str) -> Generator:
    """The generator called ``name``.

    Raises:
        KeyError: there is none; the message lists them.
    """
    known = {item.name: item for item in GENERATORS}
    if name not in known:
        raise KeyError(f"no model {name!r} that generates; there are {', '.join(known)}")
    return known[name]
