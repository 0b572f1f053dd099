"""A Llama-style decoder of transformers' own layers, so built that its layers can be compiled, sharded and split.

Place: below ``cases``; ``parallel`` spreads it. Input: settings of ``LlamaConfig``. Output: token ids to logits.
Why not ``LlamaForCausalLM``: a stage of a pipeline has some of the layers only, and trainers compile layer by layer.
Its layers, norms and rotary embedding are transformers' own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mixbackend.benchmarks.models.torchvision_shim import enable_torchvision

_STD = 0.02


class Decoder(nn.Module):
    """Embedding, layers, norm and head; a part that is ``None`` belongs to another stage of a pipeline.

    Args:
        settings: of ``LlamaConfig``.
        rounded: weights are such that bfloat16 holds them.
    """

    def __init__(self, settings: Mapping[str, Any], rounded: bool = False) -> None:
        super().__init__()
        enable_torchvision()
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

        config = LlamaConfig(**{**settings, "attn_implementation": "sdpa"})
        width = config.hidden_size
        self.embedding: nn.Module | None = nn.Embedding(config.vocab_size, width)
        self.layers = nn.ModuleDict(
            {str(place): LlamaDecoderLayer(config, place) for place in range(config.num_hidden_layers)}
        )
        self.norm: nn.Module | None = LlamaRMSNorm(width, eps=config.rms_norm_eps)
        self.head: nn.Module | None = nn.Linear(width, config.vocab_size, bias=False)
        self.rotary = LlamaRotaryEmbedding(config=config)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=_STD)
                if rounded:
                    parameter.copy_(parameter.bfloat16())

    def forward(self, hidden: Tensor) -> Tensor:
        """Token ids, or in a later stage hidden states, to logits, or in an earlier one hidden states."""
        if self.embedding is not None:
            hidden = self.embedding(hidden)
        positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
        rotation = self.rotary(hidden, positions)
        for layer in self.layers.values():
            hidden = layer(hidden, attention_mask=None, position_embeddings=rotation)
        if self.norm is not None and self.head is not None:
            hidden = self.head(self.norm(hidden))
        return hidden

    def keep_stage(self, stage: int, stages: int) -> Decoder:
        """Drop what belongs to other stages; layers keep their names."""
        each = -(-len(self.layers) // stages)
        for place, name in enumerate(list(self.layers)):
            if place // each != stage:
                del self.layers[name]
        if stage > 0:
            self.embedding = None
        if stage < stages - 1:
            self.norm = self.head = None
        return self


class Checkpointed(nn.Module):
    """A layer that keeps its inputs alone, and runs again in the backward."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.checkpointed = layer

    def forward(self, *values: Any, **named: Any) -> Tensor:
        """As the layer's."""
        kept: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
        return cast(Tensor, checkpoint(self.checkpointed, *values, **kept, **named))


def next_tokens_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Cross entropy of every token with the one after it."""
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
