"""Generated Triton text is compiled for GPUs that are not here: NVIDIA's sm_80 and sm_90, AMD's gfx942."""

from __future__ import annotations

import pytest
import torch
from triton_cases import CASES
from triton_programs import HARDWARE, printed

from mixbackend.backends.codegen.targets.triton.text import Text
from mixbackend.contracts import CodegenError

pytest.importorskip("triton", reason="Triton is not installed")

from mixbackend.backends.codegen.targets.triton.compiler import Architecture, compile_texts

AMPERE = Architecture("cuda", "80", 32)
MI300 = Architecture("hip", "gfx942", 64)
EVERYWHERE = (
    "gelu_bias_residual elementary float_arithmetic integer_arithmetic layer_norm softmax cross_entropy positions "
    "variance cumulative_sum index_add max_pool product linear_gelu_residual scores symbolic_product"
).split()


@pytest.mark.sampled(19)
@pytest.mark.parametrize("name", CASES)
def test_every_pattern_has_machine_code_for_hopper(name: str) -> None:
    texts = printed(name, CASES[name].dtypes[0]).texts
    for text, binary in zip(texts, compile_texts(texts, HARDWARE.architecture), strict=True):
        assert binary.code.startswith(b"\x7fELF")
        assert binary.threads == 32 * text.warps
        assert binary.shared <= (HARDWARE.shared if "tl.dot" in text.body else 48 * 1024)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("architecture", [AMPERE, MI300], ids=["sm_80", "gfx942"])
@pytest.mark.parametrize("name", EVERYWHERE)
def test_patterns_have_machine_code_elsewhere(name: str, architecture: Architecture) -> None:
    texts = printed(name, CASES[name].dtypes[0]).texts
    for text, binary in zip(texts, compile_texts(texts, architecture), strict=True):
        assert binary.code.startswith(b"\x7fELF")
        assert binary.threads == architecture.warp * text.warps


@pytest.mark.parametrize("architecture", [AMPERE, HARDWARE.architecture, MI300], ids=["sm_80", "sm_90", "gfx942"])
def test_updates_of_bfloat16_may_meet(architecture: Architecture) -> None:
    texts = printed("index_add", torch.bfloat16).texts
    assert all(binary.code for binary in compile_texts(texts, architecture))


def test_code_for_memory_that_begins_anywhere_is_another() -> None:
    texts = printed("gelu_bias_residual", torch.float16).texts
    aligned = compile_texts(texts, HARDWARE.architecture)
    unaligned = compile_texts(texts, HARDWARE.architecture, aligned=False)
    assert [binary.code for binary in aligned] != [binary.code for binary in unaligned]


def test_what_triton_refuses_is_shown_with_its_text() -> None:
    text = Text("@triton.jit\ndef mixbackend_kernel(b0):\n    tl.store(b0, unknown)\n", (("b0", "*fp32"),), 1)
    with pytest.raises(CodegenError, match="Triton refused a kernel") as caught:
        compile_texts([text], HARDWARE.architecture)
    assert "tl.store(b0, unknown)" in str(caught.value)
