"""OpenVINO as a peer of ``bench decode``: the whole model, with keys and values as its state.

Place: below ``sessions``. Input: a request. Output: a ``Session``.
Invariants: the model has transformers' own layers, norms and rotation, and the weights of all peers; the prompt is
taken token by token, so that a step needs no mask.
"""

from __future__ import annotations

from typing import Any

import numpy
import torch
from torch import Tensor, nn

from mixbackend.benchmarks.decode.model import Int8Linear, bytes_of_step, make_model, prompt_of
from mixbackend.benchmarks.decode.request import SHAPES, DecodeRequest

_HINTS = {"float32": "f32", "bfloat16": "bf16", "int8": "bf16"}


class OpenVinoSession:
    """A compiled stateful model."""

    def __init__(self, request: DecodeRequest) -> None:
        import openvino

        if request.precision not in _HINTS:
            raise ValueError(f"openvino reads no torch model in {request.precision}: leave it out of --peers")
        model = make_model(request.shape, request.precision)
        self.bytes_of_step = bytes_of_step(model, request.context)
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": _HINTS[request.precision],
            "INFERENCE_NUM_THREADS": str(request.threads),
            "KV_CACHE_PRECISION": "f32" if request.precision == "float32" else "bf16",
        }
        compiled = openvino.compile_model(_converted(model), "CPU", settings)
        self._request = compiled.create_infer_request()
        self._position = 0
        for token in prompt_of(request.context, SHAPES[request.shape].vocabulary)[0].tolist():
            self._first = self.step(token)
        self._context = request.context
        self._kept = [(state, openvino.Tensor(state.state.data.copy())) for state in self._request.query_state()]

    def rewind(self) -> int:
        """Put the state back that the prompt left."""
        for state, kept in self._kept:
            state.state = kept
        self._position = self._context
        return self._first

    def step(self, token: int) -> int:
        """One inference."""
        self._request.infer([numpy.array([[token]]), numpy.array([[self._position]])], share_inputs=True)
        self._position += 1
        return int(self._request.get_output_tensor(0).data.argmax())


def _converted(model: Any) -> Any:
    """Traced with one past token, its length left open, and made stateful."""
    import openvino
    from openvino._offline_transformations import apply_make_stateful_transformation

    config = model.config
    past = [torch.zeros(1, config.num_key_value_heads, 1, config.head_dim) for _ in range(2 * config.num_hidden_layers)]
    module = _Step(model).float()
    with torch.no_grad():
        converted = openvino.convert_model(
            module, example_input=(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64), *past)
        )
    pairs = {}
    for place, (taken, given) in enumerate(zip(converted.inputs[2:], converted.outputs[1:], strict=True)):
        taken.get_node().set_partial_shape(openvino.PartialShape([1, past[0].shape[1], -1, past[0].shape[3]]))
        taken.set_names({f"past.{place}"})
        given.set_names({f"present.{place}"})
        pairs[f"past.{place}"] = f"present.{place}"
    converted.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(converted, pairs)
    return converted


class _Step(nn.Module):
    """Token, position and past of shape (1, heads, tokens, width), to logits and what is past then."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._embedding, self._head, self._norm = model.model.embed_tokens, model.lm_head, model.model.norm
        self._rotation, self._layers = model.model.rotary_emb, model.model.layers
        for name, child in list(self.named_modules()):
            if isinstance(child, Int8Linear):
                self.set_submodule(name, _Compressed(child))

    def forward(self, token: Tensor, position: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """One step."""
        hidden = self._embedding(token)
        cosine, sine = self._rotation(hidden, position)
        present: list[Tensor] = []
        for place, layer in enumerate(self._layers):
            attended, keys, values = _attend(
                layer.self_attn, layer.input_layernorm(hidden), (cosine, sine), past[2 * place], past[2 * place + 1]
            )
            present += [keys, values]
            hidden = hidden + attended
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return (self._head(self._norm(hidden)), *present)


def _attend(
    layer: Any, hidden: Tensor, rotation: tuple[Tensor, Tensor], keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv

    def heads(projection: nn.Module) -> Tensor:
        return projection(hidden).view(1, 1, -1, layer.head_dim).transpose(1, 2)

    query, key = apply_rotary_pos_emb(heads(layer.q_proj), heads(layer.k_proj), *rotation)
    keys = torch.cat([keys, key], dim=2)
    values = torch.cat([values, heads(layer.v_proj)], dim=2)
    groups = layer.num_key_value_groups
    attended = nn.functional.scaled_dot_product_attention(query, repeat_kv(keys, groups), repeat_kv(values, groups))
    return layer.o_proj(attended.transpose(1, 2).reshape(1, 1, -1)), keys, values


class _Compressed(nn.Module):
    """Codes scaled before the product: the form that OpenVINO keeps compressed."""

    codes: Tensor

    def __init__(self, linear: Int8Linear) -> None:
        super().__init__()
        self.register_buffer("codes", linear.codes)
        self.scale = nn.Parameter(linear.scale.float()[:, None], requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Of shape (..., inputs) to (..., outputs)."""
        return nn.functional.linear(x, self.codes.to(x.dtype) * self.scale)
