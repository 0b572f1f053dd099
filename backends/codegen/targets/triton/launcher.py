"""One call from Python for all kernels of a program, on the user's stream.

Place: above ``driver``; makes the ``launch`` of a compiled program. Input: the calls, the kernels' code, and the
compiled launcher (``launcher.cpp``). Output: a ``Launch``.
Invariants: a call packs the addresses of its tensors and nothing else, unless sizes change. Kernels run on the stream
that is torch's current one, on the device of the first tensor. Code for memory that is not aligned, or for indices
of 64 bits where 32 mostly do, is compiled where it is first needed.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from mixbackend.backends.codegen.call_table import CallTable
from mixbackend.backends.codegen.targets.cpp.plain import plain_function
from mixbackend.backends.codegen.targets.target import Launch
from mixbackend.backends.codegen.targets.triton.compiler import Binary
from mixbackend.backends.codegen.targets.triton.driver import Driver, find_driver
from mixbackend.backends.codegen.targets.triton.limits import LARGEST_INDEX
from mixbackend.contracts import CodegenError
from mixbackend.contracts.torch_compat import current_cuda_device, raw_cuda_stream

LAUNCHER_TEXT = (Path(__file__).parent / "launcher.cpp").read_text()
ALIGNMENT = 16
_NOT_ALIGNED = -1
_NO_CONTEXT = 201

Values = Callable[[Sequence[int]], tuple[int, ...]]
"""From the parameters of a launch to what the kernels take: for each call its number of blocks and its arguments."""

_address = torch.Tensor.data_ptr

_Owned = ctypes.Array[ctypes.c_char]


@dataclass(frozen=True)
class Kernels:
    """What is launched.

    Attributes:
        table: of the calls.
        binaries: gives one for each call, for memory that is aligned or begins anywhere, and for indices of 32 or 64
            bits.
        value_counts: of each call, see ``Values``.
        values: see there.
        reach: from the parameters of a launch to what indices reach.
    """

    table: CallTable
    binaries: Callable[[bool, bool], Sequence[Binary]]
    value_counts: Sequence[int]
    values: Values
    reach: Callable[[Sequence[int]], int]


@dataclass(frozen=True)
class _Tables:
    """A program as ``launcher.cpp`` reads it, on one device, for one set of sizes."""

    parameters: Sequence[int]
    numbers: Sequence[float]
    address: int
    owned: tuple[_Owned, ...]


def make_launch(kernels: Kernels) -> Launch:
    """The function that runs a program."""
    launcher = _Launcher(kernels)
    return launcher.launch


class _Launcher:
    """State of one program: tables per device, replaced whole, so that threads see one or another."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._pack = struct.Struct(f"{kernels.table.tensor_count + 1}P").pack
        self._run = _compiled()
        self._latest: dict[int, _Tables] = {}
        self._unaligned: dict[int, _Tables] = {}

    def launch(self, memory: Sequence[torch.Tensor], parameters: Sequence[int], numbers: Sequence[float]) -> None:
        """See ``Launch``."""
        device = memory[0].get_device()
        if current_cuda_device() != device:
            with torch.cuda.device(device):
                self.launch(memory, parameters, numbers)
            return
        tables = self._latest.get(device)
        if tables is None or tables.parameters is not parameters or tables.numbers is not numbers:
            tables = self._tables(device, True, parameters, numbers)
        addresses = self._pack(*map(_address, memory))
        error = self._run(tables.address, addresses, raw_cuda_stream(device))
        if error == _NOT_ALIGNED:
            tables = self._tables(device, False, parameters, numbers)
            error = self._run(tables.address, addresses, raw_cuda_stream(device))
        if error == _NO_CONTEXT:
            # A thread that never used the device has no context; nothing was launched.
            torch.cuda.set_device(device)
            error = self._run(tables.address, addresses, raw_cuda_stream(device))
        if error != 0:
            raise CodegenError(f"the GPU's driver refused to launch a kernel: error {error}")

    def _tables(self, device: int, aligned: bool, parameters: Sequence[int], numbers: Sequence[float]) -> _Tables:
        kept = self._latest if aligned else self._unaligned
        latest = kept.get(device)
        # Numbers are not compared by value: 0.0 equals -0.0.
        if latest is not None and not numbers and not latest.numbers and latest.parameters == parameters:
            return latest
        made = _tables_of(self._kernels, find_driver(), device, aligned, parameters, numbers)
        kept[device] = made
        return made


def _tables_of(
    kernels: Kernels,
    driver: Driver,
    device: int,
    aligned: bool,
    parameters: Sequence[int],
    numbers: Sequence[float],
) -> _Tables:
    table = kernels.table
    calls: list[bytes] = []
    slots: list[int] = []
    value_count = number_count = 0
    binaries = kernels.binaries(aligned, kernels.reach(parameters) > LARGEST_INDEX)
    for call, binary, count in zip(table.calls, binaries, kernels.value_counts, strict=True):
        places = (len(slots), len(call.slots), value_count, count, number_count, call.number_count)
        function = driver.function(binary, device)
        calls.append(struct.pack("=Q9q", function, binary.threads, binary.shared, binary.early, *places))
        slots += call.slots
        value_count += count
        number_count += call.number_count
    starts = parameters[len(parameters) - len(table.pieces) :]
    parts = [b"".join(calls), _integers(slots), _integers(starts), _integers(kernels.values(parameters))]
    owned = tuple(map(_owned, [*parts, struct.pack(f"={len(numbers)}d", *numbers)]))
    counts = (len(calls), table.tensor_count, ALIGNMENT if aligned else 1)
    head = _owned(struct.pack("=10Q", driver.launch, driver.launch_early, *counts, *map(ctypes.addressof, owned)))
    return _Tables(parameters, numbers, ctypes.addressof(head), (head, *owned))


def _integers(values: Sequence[int]) -> bytes:
    return struct.pack(f"={len(values)}q", *values)


def _owned(content: bytes) -> _Owned:
    return ctypes.create_string_buffer(content, max(len(content), 8))


@lru_cache(maxsize=1)
def _compiled() -> Callable[[int, bytes, int], int]:
    """The launcher, compiled once per machine."""
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return prototype(plain_function(LAUNCHER_TEXT))
