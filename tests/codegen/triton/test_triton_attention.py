"""Attention of one row of queries on GPUs: parts of the cache at once, heads that share keys together."""

from __future__ import annotations

import pytest
import torch
from triton_answers import Answers
from triton_programs import HARDWARE, SETTINGS, backend

from mixbackend.backends.codegen.ir.kernel import TemplateKernel
from mixbackend.backends.codegen.lower.attention_parts import LEAST_POSITIONS, MOST_BLOCKS, MOST_PARTS, part_length
from mixbackend.backends.codegen.targets.triton.printing import print_program
from mixbackend.graph.trace import trace_region

pytest.importorskip("triton", reason="Triton is not installed")

from mixbackend.backends.codegen.targets.triton.compiler import Architecture, compile_texts

EFFICIENT, CUDNN = "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"
SIZES = {
    "one position": (1, 1, 1, 1, 8, 8),
    "parts": (2, 2, 4, 256, 16, 16),
    "a rest": (1, 2, 3, 200, 40, 24),
    "steps of a part": (1, 1, 2, 70, 256, 256),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("mask", ["none", "keys", "heads", "row", "nan"])
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
def test_it_is_what_attention_is(answer: Answers, name: str, mask: str, dtype: str) -> None:
    found = answer("run_triton_attention", EFFICIENT if dtype == "float32" else CUDNN, SIZES[name], mask, dtype)
    assert found["kernels"] == ["attention_parts", "fold"]
    assert found["strange"], "NaN is where float64 has it"
    assert found["apart"] <= max(found["eager"], found["rounding"])


def test_parts_keep_every_unit_busy_and_are_few() -> None:
    for rows in (1, 8, 64, 512, 5000):
        for positions in (1, 64, 65, 1024, 4097, 131_072):
            length = part_length(rows, positions)
            parts = -(-positions // length)
            assert length >= LEAST_POSITIONS and length & (length - 1) == 0
            assert parts <= MOST_PARTS and (parts == 1 or rows * parts <= MOST_BLOCKS)
    assert part_length(8, 1024) == 64 and part_length(8, 131_072) == 2048


def test_keys_of_a_group_are_read_once() -> None:
    keys = torch.randn(1, 2, 128, 16, dtype=torch.bfloat16)
    query = torch.randn(1, 8, 1, 16, dtype=torch.bfloat16)

    def step(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        many = k[:, :, None].expand(1, 2, 4, 128, 16).reshape(1, 8, 128, 16)
        return torch.ops.aten._scaled_dot_product_cudnn_attention(q, many, many, None, False)[0]

    program = backend().program(trace_region(step, [query, keys]))
    (call,) = (call for call in program.calls if isinstance(call.kernel, TemplateKernel))
    assert call.kernel.name == "attention_parts"
    key = call.kernel.operands[1]
    assert key is not None
    values = dict(zip(call.kernel.parameters, call.parameters, strict=True))
    assert [int(size.xreplace(values)) for size in key.sizes] == [1, 2, 128, 16]


@pytest.mark.parametrize(
    "architecture", [HARDWARE.architecture, Architecture("hip", "gfx942", 64)], ids=["sm_90", "gfx942"]
)
def test_it_has_machine_code(architecture: Architecture) -> None:
    keys, query = torch.randn(2, 4, 1000, 80, dtype=torch.float16), torch.randn(2, 4, 1, 80, dtype=torch.float16)
    step = lambda q, k: torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, k, None, False)[0]  # noqa: E731
    texts = print_program(backend().program(trace_region(step, [query, keys])), SETTINGS).texts
    for text, binary in zip(texts, compile_texts(texts, architecture), strict=True):
        assert binary.code.startswith(b"\x7fELF") and binary.threads == architecture.warp * text.warps
        assert binary.shared <= 48 * 1024


def test_symbolic_lengths_are_folds() -> None:
    keys, query = torch.randn(1, 2, 100, 16), torch.randn(1, 2, 1, 16)
    step = lambda q, k: torch.ops.aten._scaled_dot_product_efficient_attention(q, k, k, None, False, scale=0.5)[0]  # noqa: E731
    program = backend().program(trace_region(step, [query, keys], dynamic=True))
    assert not any(isinstance(call.kernel, TemplateKernel) for call in program.calls)
