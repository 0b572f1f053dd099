"""The model of ``bench decode``: transformers' Llama with random weights, alike in every process.

Place: below the sessions, which run it. Input: a shape and a precision. Output: the module, and bytes of its weights.
Invariants: weights depend on the shape alone; ``int8`` rounds the same weights to codes, ``bfloat16`` to its values.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from mixbackend.benchmarks.decode.request import SHAPES, Precision, Shape
from mixbackend.benchmarks.models.torchvision_shim import enable_torchvision

_SEED = 0
_LARGEST_CODE = 127


class Int8Linear(nn.Module):
    """A product with codes of 8 bits and a scale for each output, as torchao's weight-only layers compute it."""

    codes: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(dim=1) / _LARGEST_CODE
        self.register_buffer("codes", torch.round(weight / scale[:, None]).to(torch.int8))
        self.register_buffer("scale", scale.to(linear.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Of shape (..., inputs) to (..., outputs)."""
        return nn.functional.linear(x, self.codes.to(x.dtype)) * self.scale


def make_model(shape: str, precision: Precision, device: str = "cpu") -> Any:
    """A ``LlamaForCausalLM`` in evaluation mode; random weights are drawn on the device."""
    library = enable_torchvision()
    import transformers

    del library
    sizes = SHAPES[shape]
    torch.manual_seed(_SEED)
    configuration = llama_of(sizes, initializer_range=sizes.width**-0.5, tie_word_embeddings=False)
    with torch.device(device):
        model = transformers.LlamaForCausalLM(configuration).eval()
    if precision != "float32":
        model = model.bfloat16()
    if precision == "int8":
        quantise(model)
    return model.requires_grad_(False)


def llama_of(sizes: Shape, **settings: Any) -> Any:
    """transformers' ``LlamaConfig`` of these sizes, for sequences that no token ends.

    Args:
        settings: further ones.
    """
    import transformers

    return transformers.LlamaConfig(
        hidden_size=sizes.width,
        intermediate_size=sizes.inner,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.shared_heads,
        vocab_size=sizes.vocabulary,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
        **settings,
    )


def quantise(module: nn.Module) -> None:
    """Replace all linear layers by ``Int8Linear``."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, Int8Linear(child))
        else:
            quantise(child)


def bytes_of_step(model: Any, context: int, batch: int = 1) -> int:
    """Bytes that a step must read: all weights but the embedding, and each sequence's keys and values of its tokens."""
    config = model.config
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    weights = sum(value.nbytes for name, value in tensors.items() if "embed" not in name)
    held = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * context * batch
    return weights + held * cast(int, model.dtype.itemsize)


def prompt_of(context: int, vocabulary: int, batch: int = 1) -> Tensor:
    """Token ids of shape (batch, context)."""
    return torch.randint(3, vocabulary, (batch, context), generator=torch.Generator().manual_seed(_SEED))
