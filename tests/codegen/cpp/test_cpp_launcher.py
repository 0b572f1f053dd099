"""The launcher of the C++ target: threads share kernels, wait where they must, and are not started for little."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sympy
import torch

from mixbackend.backends.codegen.ir.indices import index_symbol
from mixbackend.backends.codegen.ir.kernel import BufferParameter, Kernel, KernelLoop, Nest, Store
from mixbackend.backends.codegen.ir.program import KernelCall, OutputBuffer, Program, WorkspaceBuffer
from mixbackend.backends.codegen.ir.scalar import Constant, Read, apply
from mixbackend.backends.codegen.ir.stages import StridedInput, TensorType
from mixbackend.backends.codegen.targets.cpp.target import CppTarget
from mixbackend.backends.codegen.targets.target import CompiledProgram

F = torch.float32
ROW = 16
MUCH, SOME, LITTLE = 10**7, 10_000, 1
"""Work that is worth starting threads, worth sharing with threads that run, and worth neither."""


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> CppTarget:
    folder: Path = tmp_path_factory.mktemp("launcher") / "cache"
    folder.mkdir(mode=0o700)
    return CppTarget(folder)


def _reverse(work: int, shared: bool = True) -> Kernel:
    """``b1[row] = b0[last - row] + 1``: whoever writes a row reads one that another thread wrote."""
    rows, row, column = index_symbol("p0"), index_symbol("i0"), index_symbol("i1")
    value = apply("add", Read(F, "b0", ROW * (rows - 1 - row) + column), Constant(F, 1.0))
    nest = Nest((KernelLoop(column, sympy.Integer(ROW), "vector"),), (), (Store("b1", ROW * row + column, value),))
    buffers = (BufferParameter("b0", F, "read"), BufferParameter("b1", F, "write"))
    outer = (KernelLoop(row, rows, "parallel" if shared else "ordered"),)
    return Kernel((rows,), (), buffers, (), outer, (nest,), sympy.Integer(work))


def _chain(rows: int, kernels: list[Kernel]) -> Program:
    """One kernel after the other, through two pieces of the workspace that are used again and again."""
    size = (sympy.Integer(ROW * rows),)
    names = ["x", *(f"w{place}" for place in range(len(kernels) - 1)), "y"]
    piece = ROW * rows * 4
    workspace = tuple(
        WorkspaceBuffer(name, F, sympy.Integer(place % 2 * piece), sympy.Integer(piece))
        for place, name in enumerate(names[1:-1])
    )
    calls = tuple(
        KernelCall(kernel, (names[place], names[place + 1]), (sympy.Integer(rows),))
        for place, kernel in enumerate(kernels)
    )
    one = (sympy.Integer(1),)
    inputs, outputs = (StridedInput("x", TensorType(size, F), one),), (OutputBuffer("y", F, size, one),)
    return Program(inputs, outputs, workspace, sympy.Integer(2 * piece), calls)


def _run(compiled: CompiledProgram, program: Program, x: torch.Tensor) -> torch.Tensor:
    y, workspace = torch.empty_like(x), torch.empty(int(program.workspace_bytes), dtype=torch.uint8)
    starts = [int(piece.start) for piece in program.workspace]
    compiled.launch((x, y, workspace), (*[len(x)] * len(program.calls), *starts), ())
    return y


def _expected(x: torch.Tensor, count: int) -> torch.Tensor:
    return (x.flip(0) if count % 2 else x) + count


@pytest.mark.sampled(5)
@pytest.mark.parametrize("rows", [1, 2, 7, 400])
def test_nobody_reads_what_is_not_written_yet(target: CppTarget, threads: int, rows: int) -> None:
    pattern = [MUCH, LITTLE, SOME, LITTLE, LITTLE, MUCH, MUCH, SOME]
    kernels = [_reverse(work) for work in pattern * 3] + [_reverse(MUCH, shared=False), _reverse(SOME)]
    program = _chain(rows, kernels)
    compiled = target.compile(program)
    for turn in range(300):
        x = torch.arange(float(rows))[:, None].expand(rows, ROW).contiguous() + turn
        assert torch.equal(_run(compiled, program, x), _expected(x, len(kernels))), f"turn {turn}, {threads} threads"


def test_callers_have_teams_of_their_own(target: CppTarget, threads: int) -> None:
    kernels = [_reverse(MUCH), _reverse(LITTLE), _reverse(MUCH)]
    program = _chain(50, kernels)
    compiled = target.compile(program)

    def right(number: int) -> list[bool]:
        x = torch.full((50, ROW), float(number))
        return [torch.equal(_run(compiled, program, x), _expected(x, 3)) for _ in range(100)]

    with ThreadPoolExecutor(3) as callers:
        assert all(all(results) for results in callers.map(right, range(3)))


def _threads_of_process() -> set[str]:
    """By name, not by number: a joined thread may leave the system a little later, while another starts."""
    return {task.name for task in Path("/proc/self/task").iterdir()}


def test_little_work_starts_no_threads(target: CppTarget) -> None:
    """A new thread of this process has no team until something is shared; the system counts them."""
    told: dict[int, int] = {}

    def work(amount: int) -> None:
        program = _chain(64, [_reverse(amount)] * 3)
        compiled = target.compile(program)
        before = _threads_of_process()
        _run(compiled, program, torch.zeros(64, ROW))
        told[amount] = len(_threads_of_process() - before)

    if not Path("/proc/self/task").exists() or torch.get_num_threads() == 1:
        pytest.skip("the threads of a process cannot be counted here")
    for amount in (LITTLE, SOME, MUCH):
        caller = threading.Thread(target=work, args=(amount,))
        caller.start()
        caller.join()
    assert told[LITTLE] == told[SOME] == 0 and told[MUCH] == torch.get_num_threads() - 1
