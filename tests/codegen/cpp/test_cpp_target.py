"""The C++ target: programs run, kernels are shared, artifacts travel."""

from __future__ import annotations

import json
import threading
import zlib
from pathlib import Path

import pytest
import sympy
import torch

from mixbackend.backends.codegen.ir.indices import index_symbol
from mixbackend.backends.codegen.ir.kernel import BufferParameter, Kernel, KernelLoop, Nest, Store
from mixbackend.backends.codegen.ir.program import KernelCall, OutputBuffer, Program, WorkspaceBuffer
from mixbackend.backends.codegen.ir.scalar import IndexValue, Read, apply
from mixbackend.backends.codegen.ir.stages import NumberInput, StridedInput, TensorType
from mixbackend.backends.codegen.targets.cpp import build
from mixbackend.backends.codegen.targets.cpp.target import CppTarget
from mixbackend.contracts import CodegenError

F = torch.float32
i0, p0, n0 = index_symbol("i0"), index_symbol("p0"), sympy.Symbol("n0", real=True)


def _kernel(op: str) -> Kernel:
    """``b1[i] = op(b0[i], n0)``."""
    value = apply(op, Read(F, "b0", i0), IndexValue(F, n0))
    nest = Nest((KernelLoop(i0, p0, "vector"),), (), (Store("b1", i0, value),))
    buffers = (BufferParameter("b0", F, "read"), BufferParameter("b1", F, "write"))
    return Kernel((p0,), (n0,), buffers, (), (), (nest,), p0)


def _program(size: int, *ops: str) -> Program:
    """One kernel after the other; what is between them lies in the workspace, the number is the second input."""
    sizes, number = (sympy.Integer(size),), index_symbol("a")
    tensor = StridedInput("x", TensorType(sizes, F), (sympy.Integer(1),))
    names = ["x", *(f"w{place}" for place in range(len(ops) - 1)), "y"]
    workspace = tuple(
        WorkspaceBuffer(name, F, sympy.Integer(place * 4096), sympy.Integer(4 * size))
        for place, name in enumerate(names[1:-1])
    )
    calls = tuple(
        KernelCall(_kernel(op), (names[place], names[place + 1]), sizes, (number,)) for place, op in enumerate(ops)
    )
    output = OutputBuffer("y", F, sizes, (sympy.Integer(1),))
    inputs = (tensor, NumberInput("a", number))
    return Program(inputs, (output,), workspace, sympy.Integer(4096 * len(workspace)), calls)


def _run(compiled, program: Program, x: torch.Tensor, number: float) -> torch.Tensor:  # type: ignore[no-untyped-def]
    y, workspace = torch.empty_like(x), torch.empty(int(program.workspace_bytes), dtype=torch.uint8)
    starts = [int(piece.start) for piece in program.workspace]
    parameters = (*[x.numel()] * len(program.calls), *starts)
    compiled.launch((x, y, workspace), parameters, (number,) * len(program.calls))
    return y


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    real = build.compile_object
    monkeypatch.setattr(build, "compile_object", lambda source, tools: (seen.append(source), real(source, tools))[1])
    return seen


def test_this_machine_can_compile_and_says_with_what(folder: Path) -> None:
    target = CppTarget(folder)
    availability = target.availability()
    assert availability.available and availability.version
    assert availability.version in target.fingerprint()
    traits = target.traits()
    assert traits.device_type == "cpu" and traits.vector_bytes in (16, 32, 64) and torch.bfloat16 in traits.dtypes


def test_threads_are_part_of_the_fingerprint(folder: Path) -> None:
    one, many = CppTarget(folder, openmp=False), CppTarget(folder, openmp=True)
    assert one.fingerprint() != many.fingerprint()
    assert one.traits().parallel_width == 1


def test_kernels_of_a_program_run_in_order_through_the_workspace(folder: Path) -> None:
    program = _program(37, "add", "mul", "sub")
    compiled = CppTarget(folder).compile(program)
    x = torch.randn(37)
    for number in (2.0, -3.0, 0.5):
        assert torch.equal(_run(compiled, program, x, number), (x + number) * number - number)


def test_the_sign_of_a_zero_number_counts(folder: Path) -> None:
    program = _program(5, "copysign")
    compiled = CppTarget(folder).compile(program)
    for number in (0.0, -0.0, 0.0):
        expected = torch.copysign(torch.ones(5), torch.tensor(number))
        assert torch.equal(_run(compiled, program, torch.ones(5), number), expected)


def test_a_second_program_with_the_same_kernels_compiles_nothing(folder: Path, runs: list[str]) -> None:
    target = CppTarget(folder)
    target.compile(_program(8, "add", "mul"))
    before = len(runs)
    program = _program(100, "mul", "add")
    compiled = target.compile(program)
    assert len(runs) == before
    x = torch.randn(100)
    assert torch.equal(_run(compiled, program, x, 3.0), x * 3 + 3)


def test_an_artifact_is_enough_where_nothing_was_compiled(folder: Path, tmp_path: Path, runs: list[str]) -> None:
    program = _program(19, "add", "mul")
    made = CppTarget(folder).compile(program)
    assert made.artifact is not None and "extern" in made.source
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    target = CppTarget(elsewhere)
    target.availability()
    before = len(runs)
    loaded = target.load(program.call_table, made.artifact)
    assert len(runs) == before and loaded.source == made.source
    x = torch.randn(19)
    assert torch.equal(_run(loaded, program, x, 2.0), (x + 2) * 2)


def test_an_artifact_of_another_program_toolchain_or_nothing_is_refused(folder: Path) -> None:
    target = CppTarget(folder)
    program = _program(19, "add", "mul")
    artifact = target.compile(program).artifact
    assert artifact is not None
    with pytest.raises(CodegenError, match="another program"):
        target.load(_program(19, "add").call_table, artifact)
    with pytest.raises(CodegenError, match="or machine"):
        CppTarget(folder, openmp=False).load(program.call_table, artifact)
    with pytest.raises(CodegenError, match="cannot be read"):
        target.load(program.call_table, artifact[:-9])
    content = json.loads(zlib.decompress(artifact))
    content["objects"], content["keys"] = [], ["0" * 64] * 2
    with pytest.raises(CodegenError, match="lacks kernels"):
        target.load(program.call_table, zlib.compress(json.dumps(content).encode()))


def test_threads_run_one_program_at_once_with_different_numbers(folder: Path) -> None:
    program = _program(1000, "add", "mul")
    compiled = CppTarget(folder).compile(program)
    x = torch.randn(1000)
    failures: list[float] = []

    def work(number: float) -> None:
        for _ in range(200):
            if not torch.equal(_run(compiled, program, x, number), (x + number) * number):
                failures.append(number)

    threads = [threading.Thread(target=work, args=(float(number),)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
