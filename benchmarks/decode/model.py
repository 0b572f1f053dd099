"""The model of ``bench decode``: transformers' Llama with random weights, alike in every process.

Place: below the sessions, which run it. Input: a shape and a precision. Output: the module, and bytes of its weights.
Invariants: weights depend on the shape alone; ``int8`` and ``int4`` round the same weights to codes, ``bfloat16`` to
its values.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from mixbackend.benchmarks.decode.request import SHAPES, Precision, Shape
from mixbackend.benchmarks.models.torchvision_shim import enable_torchvision

_SEED = 0
_LARGEST_CODE = 127
_LARGEST_INT4 = 15
_MIDDLE_INT4 = 8
_GROUPS = (128, 64, 32)
_TILES_OF_COLUMNS = 8


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


class Int4Linear(nn.Module):
    """A product with codes of 4 bits, a scale and a middle for each group of inputs, by torch's packed kernels.

    Groups are of the largest size in ``_GROUPS`` that divides the inputs.
    """

    packed: Tensor
    scales: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        outputs, inputs = weight.shape
        self._group = next(size for size in _GROUPS if inputs % size == 0)
        grouped = weight.view(outputs, -1, self._group)
        least = grouped.amin(-1, keepdim=True)
        scale = (grouped.amax(-1, keepdim=True) - least).clamp(min=1e-6) / _LARGEST_INT4
        codes = torch.round((grouped - least) / scale).clamp(0, _LARGEST_INT4).int().view(outputs, inputs)
        self.register_buffer("packed", _packed(codes))
        pairs = torch.cat([scale, least + _MIDDLE_INT4 * scale], -1).transpose(0, 1).contiguous()
        self.register_buffer("scales", pairs.to(linear.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Of shape (..., inputs) to (..., outputs)."""
        rows = x.flatten(0, -2)
        aten = torch.ops.aten
        product = aten._weight_int4pack_mm if x.is_cuda else aten._weight_int4pack_mm_for_cpu
        return product(rows, self.packed, self._group, self.scales).unflatten(0, x.shape[:-1])


def _packed(codes: Tensor) -> Tensor:
    if not codes.is_cuda:
        return torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    pairs = (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8)
    return torch.ops.aten._convert_weight_to_int4pack(pairs, _TILES_OF_COLUMNS)


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
    if precision in ("int8", "int4"):
        quantise(model, Int4Linear if precision == "int4" else Int8Linear)
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


def quantise(module: nn.Module, kind: type[nn.Module] = Int8Linear) -> None:
    """Replace all linear layers by ones of ``kind``, but the head, which has codes of 8 bits at least."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, Int8Linear(child) if name == "lm_head" else kind(child))
        else:
            quantise(child, kind)


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
