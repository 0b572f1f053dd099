"""Calling the function of a printed kernel as a team of threads does, one member after the other."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

MEMBERS = 3
_Numbers = ctypes.c_longlong * 4


def call_kernel(
    function: Any, memory: Sequence[torch.Tensor], parameters: Sequence[int], numbers: Sequence[float] = ()
) -> int:
    """All members' shares.

    Returns:
        How many shared the call, of the most that there could be: a little work is worth a member here.
    """
    function.restype = ctypes.c_longlong
    pointers = (ctypes.c_void_p * len(memory))(*(item.data_ptr() for item in memory))
    sizes = (ctypes.c_longlong * len(parameters))(*parameters)
    values = (ctypes.c_double * len(numbers))(*numbers)
    shared: set[int] = set()
    told = ctypes.c_int(0)
    for member in (-1, *range(MEMBERS)):
        shared.add(function(pointers, sizes, values, _Numbers(member, MEMBERS, 16, ctypes.addressof(told))))
    (count,) = shared
    assert 1 <= count <= MEMBERS
    assert told.value == 0, "a value was told to be out of range"
    return count
