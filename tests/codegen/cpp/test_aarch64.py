"""Generated kernels for AArch64: made by a cross compiler, of NEON's instructions, with eager's results in an emulator.

What it takes: ``apt install g++-aarch64-linux-gnu qemu-user``, or ``pip install ziglang`` for compiling alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cross_target import EMULATOR, CrossTarget, cross_compilers, toolchain

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.graph.trace import trace_region

COMPILERS = list(cross_compilers())
BASELINE, SCALABLE = ("-march=armv8-a",), ("-mcpu=neoverse-v1",)

pytestmark = pytest.mark.skipif(
    not COMPILERS, reason="no cross compiler for AArch64: apt install g++-aarch64-linux-gnu, or pip install ziglang"
)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def functions(x: torch.Tensor) -> torch.Tensor:
    """Every function that the headers compute by a polynomial."""
    y = x.abs() + 0.25
    return x.exp() + y.log() + x.sin() + x.cos() + x.tanh() + x.erf() + y.pow(1.3) + x.sigmoid() + x.expm1() + y.log1p()


def attention(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(x, x, x)


PROGRAMS: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "elementwise": (lambda x, y: torch.relu(x * y + 1.5) / (y.abs() + 1), (numbers(37, 41), numbers(41))),
    "halves": (lambda x, y: (x * y).to(torch.bfloat16) + 1, (numbers(999, dtype=torch.float16), numbers(999))),
    "integers": (lambda x: (x * 3 // 7).to(torch.int8) ^ 5, (torch.arange(-500, 500),)),
    "reduction": (lambda x: x.sum(1) + x.amax(1) + x.var(1), (numbers(19, 133),)),
    "columns": (lambda x: x.mean(0), (numbers(133, 19),)),
    "positions": (lambda x: x.argmax(1), (numbers(19, 133),)),
    "softmax": (lambda x: torch.softmax(x, -1), (numbers(23, 77),)),
    "layer norm": (lambda x: torch.nn.functional.layer_norm(x, (77,)), (numbers(23, 77),)),
    "functions": (functions, (numbers(2000),)),
    "product": (lambda x, y: torch.relu(x @ y), (numbers(33, 65), numbers(65, 47))),
    "product of halves": (lambda x, y: x @ y, tuple(numbers(32, 32, dtype=torch.bfloat16) for _ in range(2))),
    "convolution": (
        lambda x, w: torch.nn.functional.conv2d(x, w, padding=1),
        (numbers(2, 5, 11, 9), numbers(8, 5, 3, 3)),
    ),
    "attention": (attention, (numbers(2, 3, 40, 16),)),
    "gather": (lambda x, places: x[places] * 2, (numbers(50, 9), torch.arange(0, 50, 3))),
}
CLOSE = {torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2}}


@pytest.mark.parametrize("options", [BASELINE, pytest.param(SCALABLE, marks=pytest.mark.nightly)], ids=" ".join)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.sampled(8)
def test_kernels_compile_and_compute_what_eager_does(program: str, options: tuple[str, ...], tmp_path: Path) -> None:
    function, inputs = PROGRAMS[program]
    region, target = trace_region(function, inputs), CrossTarget(toolchain(COMPILERS[0], *options), tmp_path)
    compiled = CodegenBackend(target).compile(region)
    assert target.sources
    if EMULATOR:
        (result,) = compiled.run(list(inputs))
        assert list(tmp_path.glob("*.memory")), "the emulator ran"
        expected = function(*inputs)
        torch.testing.assert_close(result, expected, **CLOSE.get(expected.dtype, {"rtol": 1e-4, "atol": 1e-5}))


@pytest.mark.parametrize("program", ["elementwise", "product", "functions"])
def test_loops_are_of_neons_instructions(program: str, tmp_path: Path) -> None:
    target = CrossTarget(toolchain(COMPILERS[0], *BASELINE), tmp_path)
    CodegenBackend(target).compile(trace_region(*PROGRAMS[program]))
    target.compiler(target.sources[0], "-S", "-o", str(tmp_path / "assembly"))
    assembly = (tmp_path / "assembly").read_text()
    multiplied = re.findall(r"\bf(?:mla|mul)\s+v\d+\.4s", assembly)
    assert len(multiplied) >= 2, "float32 is multiplied four at a time"


@pytest.mark.nightly
@pytest.mark.parametrize("command", COMPILERS, ids=lambda command: Path(command[0]).name)
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_compiler_takes_every_program(command: tuple[str, ...], program: str, tmp_path: Path) -> None:
    function, inputs = PROGRAMS[program]
    target = CrossTarget(toolchain(command), tmp_path)
    CodegenBackend(target).compile(trace_region(function, inputs))
    assert target.sources


def test_the_description_of_a_processor_is_its_compilers() -> None:
    baseline, scalable = (toolchain(COMPILERS[0], *options).features for options in (BASELINE, SCALABLE))
    assert baseline.vector_bytes == scalable.vector_bytes == 16
    assert baseline.digest != scalable.digest
