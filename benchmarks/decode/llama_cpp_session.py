"""llama.cpp as a peer of ``bench decode``: the same weights, written with gguf's writer.

Place: below ``sessions``; needs ``llama-cpp-python`` and ``gguf``. Input: a request. Output: a ``Session``.
Invariants: codes of 8 bits are llama.cpp's own kind with a scale for each 32 of them: 6% more bytes, other values.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
from torch import Tensor

from mixbackend.benchmarks.decode.model import bytes_of_step, make_model, prompt_of
from mixbackend.benchmarks.decode.request import SHAPES, DecodeRequest

_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_EIGHT_BITS = ("token_embd.weight", "output.weight")
_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


class LlamaCppSession:
    """A context of llama.cpp."""

    def __init__(self, request: DecodeRequest) -> None:
        import llama_cpp

        self._library: Any = llama_cpp
        self._vocabulary = SHAPES[request.shape].vocabulary
        self.bytes_of_step = bytes_of_step(make_model(request.shape, request.precision), request.context)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            _write(request, path)
            kind = llama_cpp.GGML_TYPE_F32 if request.precision == "float32" else llama_cpp.GGML_TYPE_F16
            self._llama = llama_cpp.Llama(
                str(path),
                n_ctx=request.capacity,
                n_threads=request.threads,
                n_threads_batch=request.threads,
                type_k=kind,
                type_v=kind,
                use_mmap=False,
                verbose=False,
            )
        self._context = request.context
        self._llama.eval(prompt_of(request.context, self._vocabulary)[0].tolist())
        self._first = self._likeliest()

    def rewind(self) -> int:
        """What is behind the prompt is dropped by the next evaluation."""
        self._llama.n_tokens = self._context
        return self._first

    def step(self, token: int) -> int:
        """One evaluation."""
        self._llama.eval([token])
        return self._likeliest()

    def _likeliest(self) -> int:
        logits = self._library.llama_get_logits(self._llama.ctx)
        return int(numpy.ctypeslib.as_array(logits, shape=(self._vocabulary,)).argmax())


def _write(request: DecodeRequest, path: Path) -> None:
    import gguf

    sizes = SHAPES[request.shape]
    model = make_model(request.shape, "float32" if request.precision == "float32" else "bfloat16")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(request.capacity)
    writer.add_embedding_length(sizes.width)
    writer.add_block_count(sizes.layers)
    writer.add_feed_forward_length(sizes.inner)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.shared_heads)
    writer.add_rope_dimension_count(sizes.width // sizes.heads)
    writer.add_rope_freq_base(float(model.config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_vocab_size(sizes.vocabulary)
    writer.add_tokenizer_model("no_vocab")
    wide = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_1"}[request.precision]
    for name, value in _tensors(model):
        named = "Q8_0" if wide == "Q4_1" and name in _EIGHT_BITS else wide
        kind = gguf.GGMLQuantizationType[named if value.ndim > 1 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(model: Any) -> Iterator[tuple[str, Any]]:
    """Tensors by llama.cpp's names; it rotates neighbours, transformers rotates halves: rows of heads change places."""
    config = model.config
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, value in model.named_parameters():
        stem = name.removesuffix(".weight")
        if stem in _NAMES:
            renamed = _NAMES[stem]
        else:
            _, _, place, rest = stem.split(".", 3)
            renamed = f"blk.{place}.{_LAYER_NAMES[rest]}"
        kind = renamed.rsplit(".", 1)[-1]
        yield f"{renamed}.weight", (_neighbours(value, heads[kind]) if kind in heads else value).float().numpy()


def _neighbours(weight: Tensor, heads: int) -> Tensor:
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)
