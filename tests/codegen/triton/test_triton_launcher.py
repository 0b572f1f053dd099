"""The launcher, with a driver that only writes down what it is asked to launch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mixbackend.backends.codegen.call_table import CallTable, TabledCall
from mixbackend.backends.codegen.targets.triton import launcher
from mixbackend.backends.codegen.targets.triton.compiler import Binary
from mixbackend.contracts import CodegenError

STREAM = 4711
Entry = tuple[int, int, int, int, int, list[int]]


class Configuration(ctypes.Structure):
    """As CUDA's driver reads it, with the one attribute that is used."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(ctypes.c_int * 18)),
        ("attribute_count", ctypes.c_uint),
    ]


PROTOTYPE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
EARLY = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(Configuration), ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)


class Driver:
    """Writes down function, blocks, threads, shared memory, stream and arguments; answers with ``errors``."""

    def __init__(self, argument_counts: dict[int, int]) -> None:
        self.entries: list[Entry] = []
        self.errors: list[int] = []
        self._counts = argument_counts
        self._callback = PROTOTYPE(self._record)
        self._early = EARLY(self._record_early)
        self.launch = ctypes.cast(self._callback, ctypes.c_void_p).value
        self.launch_early = ctypes.cast(self._early, ctypes.c_void_p).value
        self.early: list[tuple[int, ...]] = []

    def function(self, binary: Binary, device: int) -> int:
        return int(binary.symbol)

    def _record(self, function: int, *rest: Any) -> int:
        blocks, _, _, threads, _, _, shared, stream, arguments, _ = rest
        error = self.errors.pop(0) if self.errors else 0
        if error == 0:
            count = self._counts[function]
            words = [ctypes.cast(arguments[place], ctypes.POINTER(ctypes.c_int64))[0] for place in range(count)]
            self.entries.append((function, blocks, threads, shared, stream, words))
        return error

    def _record_early(self, pointer: Any, function: int, arguments: Any, extra: Any) -> int:
        told = pointer.contents
        kind, _, allowed, *_ = told.attributes.contents
        self.early.append((told.attribute_count, kind, allowed))
        return self._record(function, *told.grid, *told.block, told.shared, told.stream, arguments, extra)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """In place of the GPU's; ordinary tensors are on device -1."""
    made = Driver({11: 4, 12: 5, 21: 4, 22: 5, 31: 4, 32: 5})
    monkeypatch.setattr(launcher, "find_driver", lambda: made)
    monkeypatch.setattr(launcher, "raw_cuda_stream", lambda device: STREAM)
    monkeypatch.setattr(launcher, "current_cuda_device", lambda: -1)
    return made


def kernels(
    values: Callable[..., tuple[int, ...]], reach: Callable[..., int] = lambda p: 0, early: bool = False
) -> launcher.Kernels:
    """Two calls: from the input into the workspace, and from there, with an argument, into the output."""
    calls = (TabledCall(0, (0, 2), 1, 0), TabledCall(1, (2, 1), 1, 0))
    table = CallTable(2, 2, (torch.float32,), calls)
    aligned = [Binary(b"a", "11", 128, 0), Binary(b"b", "12", 256, 64, early)]
    unaligned = [Binary(b"c", "21", 128, 0), Binary(b"d", "22", 256, 64)]
    wide = [Binary(b"e", "31", 128, 0), Binary(b"f", "32", 256, 64)]

    def chosen(is_aligned: bool, is_wide: bool) -> list[Binary]:
        return wide if is_wide else aligned if is_aligned else unaligned

    return launcher.Kernels(table, chosen, (1, 2), values, reach)


def two_calls(p: tuple[int, ...]) -> tuple[int, ...]:
    return (p[0], p[1], 5)


def test_a_program_is_one_call_on_the_current_stream(driver: Driver) -> None:
    launch = launcher.make_launch(kernels(two_calls))
    x, y, workspace = torch.empty(8), torch.empty(8), torch.empty(256, dtype=torch.uint8)
    launch((x, y, workspace), (3, 7, 64), ())
    piece = workspace.data_ptr() + 64
    assert driver.entries == [
        (11, 3, 128, 0, STREAM, [x.data_ptr(), piece, 0, 0]),
        (12, 7, 256, 64, STREAM, [piece, y.data_ptr(), 5, 0, 0]),
    ]


def test_a_kernel_that_waits_by_itself_may_start_early(driver: Driver) -> None:
    x, y, workspace = torch.empty(8), torch.empty(8), torch.empty(256, dtype=torch.uint8)
    for early in (False, True):
        launcher.make_launch(kernels(two_calls, early=early))((x, y, workspace), (3, 7, 64), ())
    # One attribute: number 6 of CUDA's driver, set.
    assert driver.early == [(1, 6, 1)] and driver.entries[:2] == driver.entries[2:]


def test_a_driver_that_starts_nothing_early_starts_in_turn(driver: Driver) -> None:
    driver.launch_early = 0
    x, y, workspace = torch.empty(8), torch.empty(8), torch.empty(256, dtype=torch.uint8)
    launcher.make_launch(kernels(two_calls, early=True))((x, y, workspace), (3, 7, 64), ())
    assert [entry[0] for entry in driver.entries] == [11, 12] and not driver.early


def test_other_sizes_make_other_launches(driver: Driver) -> None:
    launch = launcher.make_launch(kernels(two_calls))
    memory = (torch.empty(8), torch.empty(8), torch.empty(256, dtype=torch.uint8))
    for blocks in (3, 4, 3):
        launch(memory, (blocks, 7, 0), ())
    assert [entry[1] for entry in driver.entries] == [3, 7, 4, 7, 3, 7]


def test_kernels_without_a_block_are_left_out(driver: Driver) -> None:
    launch = launcher.make_launch(kernels(two_calls))
    launch((torch.empty(8), torch.empty(8), torch.empty(256, dtype=torch.uint8)), (0, 7, 0), ())
    assert [entry[0] for entry in driver.entries] == [12]


def test_memory_that_is_not_aligned_takes_other_code(driver: Driver) -> None:
    launch = launcher.make_launch(kernels(two_calls))
    rest = (torch.empty(8), torch.empty(256, dtype=torch.uint8))
    launch((torch.empty(9)[1:], *rest), (3, 7, 0), ())
    launch((torch.empty(8), *rest), (3, 7, 0), ())
    assert [entry[0] for entry in driver.entries] == [21, 22, 11, 12]


def test_sizes_that_reach_further_take_code_for_64_bits(driver: Driver) -> None:
    launch = launcher.make_launch(kernels(two_calls, lambda p: p[0] << 20))
    memory = (torch.empty(8), torch.empty(8), torch.empty(256, dtype=torch.uint8))
    for blocks in (3, 1 << 11, 3):
        launch(memory, (blocks, 7, 0), ())
    assert [entry[0] for entry in driver.entries] == [11, 12, 31, 32, 11, 12]


def test_a_thread_without_a_context_gets_one(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    driver.errors = [201]
    launch = launcher.make_launch(kernels(two_calls))
    launch((torch.empty(8), torch.empty(8), torch.empty(256, dtype=torch.uint8)), (3, 7, 0), ())
    assert chosen == [-1] and [entry[0] for entry in driver.entries] == [11, 12]


def test_what_the_driver_refuses_is_an_error(driver: Driver) -> None:
    driver.errors = [701]
    launch = launcher.make_launch(kernels(two_calls))
    with pytest.raises(CodegenError, match="error 701"):
        launch((torch.empty(8), torch.empty(8), torch.empty(256, dtype=torch.uint8)), (3, 7, 0), ())


def test_on_another_device_than_the_current_one(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    current = [0]

    class Guard(SimpleNamespace):
        def __init__(self, device: int) -> None:
            super().__init__(device=device)

        def __enter__(self) -> None:
            current.append(self.device)

        def __exit__(self, *_: object) -> None:
            current.pop()

    monkeypatch.setattr(torch.cuda, "device", Guard)
    monkeypatch.setattr(launcher, "current_cuda_device", lambda: current[-1])
    launch = launcher.make_launch(kernels(two_calls))
    launch((torch.empty(8), torch.empty(8), torch.empty(256, dtype=torch.uint8)), (3, 7, 0), ())
    assert len(driver.entries) == 2 and current == [0]
