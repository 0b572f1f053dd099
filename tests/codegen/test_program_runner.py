"""The run function: what is allocated, evaluated and handed to the target."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import sympy
import torch

from mixbackend.backends.codegen import runner
from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo, index_symbol
from mixbackend.backends.codegen.ir.kernel import BufferParameter, Kernel
from mixbackend.backends.codegen.ir.program import KernelCall, OutputBuffer, Program, WorkspaceBuffer
from mixbackend.backends.codegen.ir.stages import AliasOutput, NumberInput, StridedInput, TensorType
from mixbackend.backends.codegen.runner import Workspaces, make_runner
from mixbackend.backends.codegen.runner_text import runner_text
from mixbackend.backends.codegen.targets.target import Launch
from mixbackend.contracts import CodegenError
from mixbackend.contracts.region import RunFunction

F = torch.float32
n, m, a = (
    sympy.Symbol("n", integer=True, positive=True),
    sympy.Symbol("m", integer=True, positive=True),
    index_symbol("a"),
)


def _sizes(*sizes: Any) -> tuple[sympy.Expr, ...]:
    return tuple(sympy.sympify(size) for size in sizes)


def _input(name: str, sizes: Sequence[Any], strides: Sequence[Any]) -> StridedInput:
    return StridedInput(name, TensorType(_sizes(*sizes), F), _sizes(*strides))


def _output(name: str, sizes: Sequence[Any], strides: Sequence[Any], dtype: torch.dtype = F) -> OutputBuffer:
    return OutputBuffer(name, dtype, _sizes(*sizes), _sizes(*strides))


def _call(buffers: Sequence[str], parameters: Sequence[Any] = (), numbers: Sequence[sympy.Symbol] = ()) -> KernelCall:
    kinds = tuple(BufferParameter(f"b{place}", F, "update") for place in range(len(buffers)))
    kernel = Kernel((), (), kinds, (), (), (), sympy.Integer(0))
    return KernelCall(kernel, tuple(buffers), _sizes(*parameters), tuple(numbers))


class Recorder:
    """A launch that keeps what it was given and fills every output and the workspace with a number."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[torch.Tensor, ...], tuple[int, ...], tuple[float, ...]]] = []

    def __call__(self, memory: Sequence[torch.Tensor], parameters: Sequence[int], numbers: Sequence[float]) -> None:
        self.calls.append((tuple(memory), tuple(parameters), tuple(numbers)))


def _runner(program: Program, launch: Launch, device: str = "cpu") -> RunFunction:
    return make_runner(runner_text(program, device), launch, device)


def test_a_static_program_gets_numbers_and_fresh_outputs_in_their_strides() -> None:
    inputs = (_input("x", (2, 3), (3, 1)), _input("y", (3, 2), (1, 3)))
    outputs = (_output("p", (2, 3), (3, 1)), _output("q", (2, 3), (1, 2), torch.int64))
    program = Program(inputs, outputs, (), sympy.Integer(0), (_call("xp", (6, 1)), _call("yq", (7,))))
    recorder = Recorder()
    run = _runner(program, recorder)
    x, y = torch.randn(2, 3), torch.randn(2, 3).t()
    p, q = run([x, y])
    again = run([x, y])
    assert p.is_contiguous() and q.stride() == (1, 2) and q.dtype == torch.int64
    assert again[0].data_ptr() != p.data_ptr()
    memory, parameters, numbers = recorder.calls[0]
    assert [tensor.data_ptr() for tensor in memory[:4]] == [tensor.data_ptr() for tensor in (x, y, p, q)]
    assert memory[4].dtype == torch.uint8 and memory[4].numel() == 0
    assert parameters == (6, 1, 7) and numbers == ()
    # A target recognises the tuples it had before.
    text = runner_text(program)
    assert "shape" not in text and "(6, 1, 7,)" in text


def test_symbols_come_from_numbers_first_and_else_from_shapes_and_strides() -> None:
    inputs = (_input("x", (n, 4), (m, 1)), NumberInput("a", a))
    expressions = (
        n * m + a,
        FloorDiv(n, sympy.Integer(2)),
        Modulo(m, sympy.Integer(3)),
        sympy.Max(n, a),
        sympy.Min(n, 2),
    )
    outputs = (_output("p", (n, 4), (4, 1)), _output("q", (FloorDiv(n + 1, sympy.Integer(2)), n**2), (n**2, 1)))
    program = Program(inputs, outputs, (), sympy.Integer(0), (_call("xpq", expressions),))
    recorder = Recorder()
    run = _runner(program, recorder)
    for rows, stride, number in ((5, 7, 11), (2, 4, 1)):
        x = torch.empty_strided((rows, 4), (stride, 1))
        p, q = run([x, number])
        assert p.shape == (rows, 4) and q.shape == ((rows + 1) // 2, rows**2)
        expected = (rows * stride + number, rows // 2, stride % 3, max(rows, number), min(rows, 2))
        assert recorder.calls[-1][1] == expected


def test_floating_numbers_are_passed_once_for_each_use() -> None:
    inputs = (_input("x", (4,), (1,)), NumberInput("a", a))
    calls = (_call("xp", (), (a,)), _call("xp", (), (a, a)))
    recorder = Recorder()
    _runner(Program(inputs, (_output("p", (4,), (1,)),), (), sympy.Integer(0), calls), recorder)([torch.ones(4), 2])
    assert recorder.calls[0][2] == (2.0, 2.0, 2.0)
    assert all(isinstance(number, float) for number in recorder.calls[0][2])


def test_aliases_are_views_of_the_input_at_its_own_offset() -> None:
    inputs = (_input("x", (n, 4), (4, 1)),)
    alias = AliasOutput("v", "x", _sizes(4, n - 1), _sizes(1, 4), sympy.Integer(4))
    recorder = Recorder()
    run = _runner(Program(inputs, (alias,), (), sympy.Integer(0), ()), recorder)
    base = torch.arange(40.0)
    x = base[8:28].view(5, 4)
    (view,) = run([x])
    assert torch.equal(view, x[1:].t()) and view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    assert not recorder.calls


def test_the_workspace_is_large_enough_and_its_pieces_follow_the_parameters() -> None:
    inputs = (_input("x", (n,), (1,)),)
    pieces = (WorkspaceBuffer("w", F, sympy.Integer(0), 4 * n), WorkspaceBuffer("v", F, 64 * n, 4 * n))
    program = Program(inputs, (_output("p", (n,), (1,)),), pieces, 128 * n, (_call("xwvp", (n,)),))
    recorder = Recorder()
    run = _runner(program, recorder)
    for size in (3, 5000, 4):
        run([torch.empty(size)])
        memory, parameters, _ = recorder.calls[-1]
        assert parameters == (size, 0, 64 * size)
        assert memory[2].dtype == torch.uint8 and memory[2].numel() >= 128 * size
        assert memory[2].data_ptr() % 64 == 0


def test_the_workspace_is_reused_but_never_by_two_calls_at_once() -> None:
    inputs = (_input("x", (8,), (1,)),)
    piece = WorkspaceBuffer("w", F, sympy.Integer(0), sympy.Integer(32))
    program = Program(inputs, (_output("p", (8,), (1,)),), (piece,), sympy.Integer(64), (_call("xwp", (8,)),))
    used: list[int] = []
    barrier = threading.Barrier(4)

    def launch(memory: Sequence[torch.Tensor], parameters: Sequence[int], numbers: Sequence[float]) -> None:
        used.append(memory[-1].data_ptr())
        barrier.wait()

    run = _runner(program, launch)
    for _ in range(2):
        threads = [threading.Thread(target=run, args=([torch.ones(8)],)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(used[:4])) == 4
    assert set(used[4:]) == set(used[:4])


def test_a_failed_launch_is_raised_and_the_next_call_works() -> None:
    inputs = (_input("x", (8,), (1,)),)
    piece = WorkspaceBuffer("w", F, sympy.Integer(0), sympy.Integer(32))
    program = Program(inputs, (_output("p", (8,), (1,)),), (piece,), sympy.Integer(64), (_call("xwp", (8,)),))
    failing = [True]

    def launch(memory: Sequence[torch.Tensor], parameters: Sequence[int], numbers: Sequence[float]) -> None:
        if failing.pop() if failing else False:
            raise RuntimeError("no such kernel")

    run = _runner(program, launch)
    with pytest.raises(RuntimeError, match="no such kernel"):
        run([torch.ones(8)])
    assert len(run([torch.ones(8)])) == 1


def test_nothing_is_launched_for_outputs_without_elements() -> None:
    inputs = (_input("x", (0, 3), (3, 1)),)
    program = Program(inputs, (_output("p", (0, 3), (3, 1)),), (), sympy.Integer(0), (_call("xp", (0,)),))
    recorder = Recorder()
    (p,) = _runner(program, recorder)([torch.empty(0, 3)])
    assert p.shape == (0, 3) and p.stride() == (3, 1) and not recorder.calls


def test_a_size_that_may_be_zero_keeps_the_declared_strides() -> None:
    size = sympy.Symbol("size", integer=True, nonnegative=True)
    inputs = (_input("x", (size, 3), (3, 1)),)
    program = Program(
        inputs, (_output("p", (4, size, 3), (3 * size, 3, 1)),), (), sympy.Integer(0), (_call("xp", (size,)),)
    )
    recorder = Recorder()
    run = _runner(program, recorder)
    for rows in (0, 2):
        (p,) = run([torch.empty(rows, 3)])
        assert p.shape == (4, rows, 3) and p.stride() == (3 * rows, 3, 1)


def test_a_size_that_no_input_tells_is_an_error() -> None:
    inputs = (_input("x", (2 * n,), (1,)),)
    program = Program(inputs, (_output("p", (n,), (1,)),), (), sympy.Integer(0), (_call("xp", (n,)),))
    with pytest.raises(CodegenError, match="no input of the region tells the size n"):
        _runner(program, Recorder())


def test_an_expression_without_python_text_is_an_error() -> None:
    inputs = (_input("x", (n,), (1,)),)
    program = Program(inputs, (_output("p", (sympy.gamma(n),), (1,)),), (), sympy.Integer(0), (_call("xp", (n,)),))
    with pytest.raises(CodegenError, match="has no Python text"):
        _runner(program, Recorder())


def test_elsewhere_than_on_a_processor_the_allocator_keeps_the_workspace() -> None:
    workspaces = Workspaces("meta")
    piece = workspaces.take(100)
    assert piece.device.type == "meta" and piece.numel() == 100
    workspaces.give_back(piece)
    assert workspaces.take(100) is not piece


def test_outputs_live_on_the_device_of_the_program() -> None:
    inputs = (_input("x", (3,), (1,)),)
    outputs = (_output("p", (3,), (1,)), _output("q", (3, 2), (1, 3)))
    run = _runner(Program(inputs, outputs, (), sympy.Integer(0), (_call("xpq"),)), Recorder(), "meta")
    assert [output.device.type for output in run([torch.ones(3)])] == ["meta", "meta"]


def _on_gpu(monkeypatch: pytest.MonkeyPatch, program: Program, recorder: Recorder, current: int) -> RunFunction:
    """A run function for a GPU, whose memory the processor has; its tensors are on device -1."""
    monkeypatch.setattr(
        runner, "gpu_allocator", lambda: lambda sizes, strides, dtype: torch.empty_strided(sizes, strides, dtype=dtype)
    )
    monkeypatch.setattr(runner, "current_cuda_device", lambda: current)
    return _runner(program, recorder, "cuda")


def test_on_a_gpu_memory_comes_from_the_allocator_in_its_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, pieces = (_input("x", (3,), (1,)),), (WorkspaceBuffer("w", F, sympy.Integer(0), sympy.Integer(32)),)
    outputs = (_output("p", (2, 3), (3, 1)), _output("q", (2, 3), (1, 2), torch.int64), _output("r", (), ()))
    program = Program(inputs, outputs, pieces, sympy.Integer(32), (_call("xpqr"),))
    recorder = Recorder()
    p, q, r = _on_gpu(monkeypatch, program, recorder, -1)([torch.ones(3)])
    assert p.stride() == (3, 1) and q.stride() == (1, 2) and q.dtype == torch.int64 and r.shape == ()
    ((memory, *_),) = recorder.calls
    assert memory[-1].numel() == 32 and memory[-1].dtype == torch.uint8


def test_on_a_gpu_that_is_not_the_current_one_it_becomes_that(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[object] = []
    current = [5]

    @contextlib.contextmanager
    def device(wanted: torch.device) -> Iterator[None]:
        chosen.append(wanted)
        current[0] = -1
        yield
        current[0] = 5

    monkeypatch.setattr(torch.cuda, "device", device)
    program = Program((_input("x", (3,), (1,)),), (_output("p", (3,), (1,)),), (), sympy.Integer(0), (_call("xp"),))
    run = _on_gpu(monkeypatch, program, Recorder(), 0)
    run.__globals__["current_device"] = lambda: current[0]
    (p,) = run([torch.ones(3)])
    assert chosen == [torch.device("cpu")] and current == [5] and p.shape == (3,)
