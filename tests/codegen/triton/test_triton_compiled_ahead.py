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
from mixbackend.backends.codegen.targets.triton.machine_code import waits_first

AMPERE = Architecture("cuda", "80", 32)
MI300 = Architecture("hip", "gfx942", 64)
EVERYWHERE = (
    "gelu_bias_residual elementary float_arithmetic integer_arithmetic layer_norm softmax cross_entropy positions "
    "variance cumulative_sum index_add max_pool product linear_gelu_residual scores symbolic_product"
).split()


@pytest.mark.sampled(14)
@pytest.mark.parametrize("name", CASES)
def test_every_pattern_has_machine_code_for_hopper(name: str) -> None:
    texts = printed(name, CASES[name].dtypes[0]).texts
    for text, binary in zip(texts, compile_texts(texts, HARDWARE.architecture), strict=True):
        assert binary.code.startswith(b"\x7fELF")
        assert binary.threads == 32 * text.warps and binary.early == ("begin()" in text.body)
        assert binary.shared <= (HARDWARE.shared if "tl.dot" in text.body else 48 * 1024)


@pytest.mark.sampled(4)
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


def test_kernels_start_early_where_hardware_can_and_they_wait() -> None:
    texts = printed("layer_norm", torch.float32).texts + printed("product", torch.float16).texts
    assert [binary.early for binary in compile_texts(texts, HARDWARE.architecture)] == [True, False]
    assert not any(binary.early for other in (AMPERE, MI300) for binary in compile_texts(texts, other))
    careless = Text("@triton.jit\ndef mixbackend_kernel(b0):\n    tl.store(b0, 1.0)\n", (("b0", "*fp32"),), 1)
    assert not compile_texts([careless], HARDWARE.architecture)[0].early


@pytest.mark.parametrize(
    ("ptx", "first"),
    [
        ("mov.u32 %r1, %ctaid.x;\nld.param.b64 %rd1, [p];\ngriddepcontrol.wait;\nld.global.b32 %r2, [%rd1];", True),
        ("@%p1 ld.global.v4.b32 {%r1}, [%rd1];\ngriddepcontrol.wait;", False),
        ("cp.async.cg.shared.global [%r1], [%rd1], 16;\ngriddepcontrol.wait;", False),
        ("ld.global.b32 %r2, [%rd1];", False),
    ],
)
def test_memory_is_touched_after_waiting_only(ptx: str, first: bool) -> None:
    assert waits_first(ptx) is first


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
