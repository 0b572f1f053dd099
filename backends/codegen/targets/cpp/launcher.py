"""One call from Python for all kernels of a program.

Place: above ``build``; makes the ``launch`` of a compiled program.
Input: a call table, the addresses of its kernels, and the compiled launcher (``launcher.cpp``). Output: a ``Launch``.
Invariants: a call packs the addresses of its tensors and nothing else, unless parameters change; tables are never
written after they are made, so threads may run a program at once. The GIL is free while kernels run.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mixbackend.backends.codegen.call_table import CallTable
from mixbackend.backends.codegen.targets.target import Launch
from mixbackend.contracts import InputRangeError

LAUNCHER_TEXT = (Path(__file__).parent / "launcher.cpp").read_text()


_Owned = ctypes.Array[ctypes.c_char]
_Table = tuple[Sequence[int], Sequence[float], int, tuple[_Owned, ...]]
"""Parameters and numbers, the address of a ``Program`` of ``launcher.cpp`` made of them, and what owns its memory."""


@dataclass(frozen=True)
class _Layout:
    """What a program's tables have in common.

    Attributes:
        calls, slots: packed as ``launcher.cpp`` reads them.
        call_count, tensor_count, piece_count: of kernel calls, of tensors, and of pieces of the workspace.
        telling: see ``CallTable``; where no call tells anything, one that there is not.
    """

    calls: _Owned
    slots: _Owned
    call_count: int
    tensor_count: int
    piece_count: int
    telling: int


def make_launch(table: CallTable, addresses: Sequence[int], launcher: int) -> Launch:
    """The function that runs a program.

    Args:
        table: the calls of the program.
        addresses: of the code of its kernels, in their order.
        launcher: address of the compiled ``launcher.cpp``.
    """
    run: Callable[[int, bytes], int] = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(launcher)
    layout = _layout(table, addresses)
    pack = struct.Struct(f"{layout.tensor_count + 1}P").pack
    # Replaced whole, so that a reader sees one table or another; the local name keeps its memory while it is used.
    latest: list[_Table] = [((), (), 0, ())]

    def launch(memory: Sequence[torch.Tensor], parameters: Sequence[int], numbers: Sequence[float]) -> None:
        kept_parameters, kept_numbers, table, _owner = latest[0]
        same = kept_parameters is parameters and kept_numbers is numbers
        # Numbers are not compared by value: 0.0 equals -0.0.
        if not table or not (same or (not numbers and not kept_numbers and kept_parameters == parameters)):
            latest[0] = made = _table(layout, tuple(parameters), tuple(numbers))
            table, _owner = made[2:]
        if run(table, pack(*[tensor.data_ptr() for tensor in memory])):
            raise InputRangeError(
                "an index, a label or a divisor that came into generated code is out of range",
                hint="ask eager, which says which one: nothing was written into an input",
            )

    return launch


def _layout(table: CallTable, addresses: Sequence[int]) -> _Layout:
    calls: list[bytes] = []
    slots: list[int] = []
    parameter_count = number_count = 0
    for call in table.calls:
        places = (len(slots), len(call.slots), parameter_count, number_count)
        calls.append(struct.pack("=Qqqqq", addresses[call.kernel], *places))
        slots += call.slots
        parameter_count += call.parameter_count
        number_count += call.number_count
    packed_slots = _owned(struct.pack(f"={len(slots)}q", *slots))
    telling = len(calls) if table.telling is None else table.telling
    return _Layout(_owned(b"".join(calls)), packed_slots, len(calls), table.tensor_count, len(table.pieces), telling)


def _table(layout: _Layout, parameters: tuple[int, ...], numbers: tuple[float, ...]) -> _Table:
    values = _owned(struct.pack(f"={len(parameters)}q", *parameters))
    floats = _owned(struct.pack(f"={len(numbers)}d", *numbers))
    starts = ctypes.addressof(values) + 8 * (len(parameters) - layout.piece_count)
    places = (ctypes.addressof(layout.calls), ctypes.addressof(layout.slots), starts)
    head = (layout.call_count, layout.tensor_count, *places, ctypes.addressof(values), ctypes.addressof(floats))
    program = _owned(struct.pack("=8Q", *head, layout.telling))
    return parameters, numbers, ctypes.addressof(program), (program, values, floats)


def _owned(content: bytes) -> _Owned:
    return ctypes.create_string_buffer(content, max(len(content), 8))
