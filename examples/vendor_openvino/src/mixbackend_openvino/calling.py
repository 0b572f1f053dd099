"""Calling compiled regions on torch's own memory.

OpenVINO keeps a bare pointer to shared memory, and setting one costs three microseconds. Allocators hand out the same
few addresses call after call, so a region of known sizes sets a pointer only where it has changed.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mixbackend.contracts import Region, TensorMeta, new_result

TYPES: Mapping[torch.dtype, tuple[str, Any]] = {
    torch.float32: ("f32", np.float32),
    torch.bfloat16: ("bf16", np.int16),
    torch.bool: ("boolean", np.bool_),
    torch.int64: ("i64", np.int64),
    torch.int32: ("i32", np.int32),
}
"""OpenVINO's name of a type, and numpy's for its memory: numpy has no bfloat16."""
FLOATS = frozenset({torch.float32, torch.bfloat16})
_MOST_ADDRESSES = 32


def shared(tensor: torch.Tensor) -> Any:
    """A dense tensor as OpenVINO's, on the same memory, which must outlive it."""
    plain = tensor.detach()
    return _on(plain.view(torch.int16).numpy() if plain.dtype is torch.bfloat16 else plain.numpy(), plain.dtype)


def _on(array: np.ndarray, dtype: torch.dtype) -> Any:
    from openvino import Shape, Tensor, Type

    return Tensor(array, Shape(array.shape), getattr(Type, TYPES[dtype][0]))


class Pointer:
    """One input or output of known size in a request, and where it points."""

    def __init__(self, meta: TensorMeta, index: int, assign: Callable[[int, Any], None]) -> None:
        self.shape = tuple(int(size) for size in meta.shape)  # type: ignore[arg-type]
        self.stride = tuple(math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))
        self.dtype = meta.dtype
        self._index = index
        self._assign = assign
        self._address = 0
        self._known: dict[int, Any] = {}

    def set(self, tensor: torch.Tensor) -> None:
        """Point at a dense tensor, which must live until the request has run."""
        address = tensor.data_ptr()
        if address != self._address:
            self._assign(self._index, self._known.get(address) or self._wrapped(address))
            self._address = address

    def _wrapped(self, address: int) -> Any:
        """The memory at an address, not owned here."""
        kind = np.dtype(TYPES[self.dtype][1])
        length = int(np.prod(self.shape, dtype=np.int64)) * kind.itemsize
        array = np.frombuffer((ctypes.c_char * length).from_address(address), kind).reshape(self.shape)
        if len(self._known) >= _MOST_ADDRESSES:
            self._known.clear()
        self._known[address] = made = _on(array, self.dtype)
        return made


class Runner:
    """Calls one compiled region.

    Outputs of known size are written straight into new torch tensors, others are copied out of OpenVINO's buffer.
    Constants are not looked at; they are kept, for OpenVINO reads them through a bare pointer.
    """

    def __init__(self, compiled: Any, region: Region, constants: Sequence[torch.Tensor | None] = ()) -> None:
        self._request = compiled.create_infer_request()
        self._constants = constants
        given = constants or [None] * len(region.inputs)
        taken = [(place, item.meta) for place, item in enumerate(region.inputs) if given[place] is None]
        self._inputs = [
            (place, self._pointer(meta, index, self._request.set_input_tensor))
            for index, (place, meta) in enumerate(taken)
        ]
        self._dtypes = [item.meta.dtype for item in region.outputs]
        self._outputs = [
            self._pointer(item.meta, index, self._request.set_output_tensor)
            for index, item in enumerate(region.outputs)
        ]

    def _pointer(self, meta: Any, index: int, assign: Callable[[int, Any], None]) -> Pointer | None:
        return None if not isinstance(meta, TensorMeta) or meta.dynamic else Pointer(meta, index, assign)

    def __call__(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        kept = [self._enter(index, inputs[place], pointer) for index, (place, pointer) in enumerate(self._inputs)]
        fresh = [None if pointer is None else self._made(pointer) for pointer in self._outputs]
        self._request.infer()
        # What was entered had to live until here.
        del kept
        return [self._copied(index) if tensor is None else tensor for index, tensor in enumerate(fresh)]

    def _enter(self, index: int, value: Any, pointer: Pointer | None) -> Any:
        if pointer is None:
            return self._enter_any(index, value)
        dense = value if value.is_contiguous() else value.contiguous()
        pointer.set(dense)
        return dense

    def _enter_any(self, index: int, value: Any) -> torch.Tensor:
        dense = value.contiguous() if isinstance(value, torch.Tensor) else torch.tensor(value)
        self._request.set_input_tensor(index, shared(dense))
        return dense

    def _made(self, pointer: Pointer) -> torch.Tensor:
        tensor = new_result(pointer.shape, pointer.stride, pointer.dtype)
        pointer.set(tensor)
        return tensor

    def _copied(self, index: int) -> torch.Tensor:
        dtype = self._dtypes[index]
        memory = self._request.get_output_tensor(index).data.view(TYPES[dtype][1])
        return torch.from_numpy(memory.copy()).view(dtype)
