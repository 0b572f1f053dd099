"""Weights: tensors as one file of safetensors, each memory stored once, and mapped back from where it lies.

Place: beside ``container``. Input: tensors by name; later, a mapped file and what the manifest says of each. Output:
bytes, and tensors in the memory of the file until they are written into, for this process alone.
Form: that of safetensors: eight bytes with the length of a JSON header, the header, the data without holes.
Every tensor begins at a multiple of ``ALIGNMENT``: what lies between are tensors of bytes called ``__pad_N``.
Invariants: tensors that share memory share it when they are read; what is equal and never written is stored once, under
whatever names. Nothing is read but numbers.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mixbackend.contracts import PackageError
from mixbackend.contracts.result_memory import spanned
from mixbackend.contracts.torch_compat import storage_key
from mixbackend.package.model import PackagedWeight

ALIGNMENT = 64
_LONGEST_HEADER = 100 << 20
_PIECE = 1 << 24
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class StoredTensor:
    """A piece of memory as it is stored.

    Attributes:
        name: in the file.
        values: dense, on the processor.
        shape: it is stored with.
    """

    name: str
    values: torch.Tensor
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """How many it takes."""
        return self.values.numel() * self.values.element_size()

    def pieces(self) -> Iterator[memoryview]:
        """Its bytes."""
        flat = self.values.reshape(-1).view(torch.uint8) if self.values.numel() else torch.empty(0, dtype=torch.uint8)
        for begin in range(0, flat.numel(), _PIECE):
            yield memoryview(flat[begin : begin + _PIECE].numpy())  # type: ignore[arg-type]


def stored_weights(
    weights: Mapping[str, torch.Tensor], written: frozenset[str]
) -> tuple[list[StoredTensor], dict[str, PackagedWeight]]:
    """How weights are stored.

    Args:
        weights: by the model's names.
        written: names of those that programs write into.

    Raises:
        PackageError: one has a type that safetensors has no name for, or is written through views of several types.
    """
    shared: dict[Any, list[str]] = {}
    for name, tensor in weights.items():
        if tensor.dtype not in _NAMES:
            raise PackageError(f"the weight {name} is of {tensor.dtype}, which safetensors does not have")
        # Memory that nothing writes into may as well be stored for each type.
        shared.setdefault((storage_key(tensor) if tensor.numel() else name, tensor.dtype), []).append(name)
    stored: list[StoredTensor] = []
    found: dict[str, PackagedWeight] = {}
    known: dict[tuple[Any, ...], StoredTensor] = {}
    for names in shared.values():
        group = {name: weights[name] for name in names}
        if written & set(names) and _types(group[names[0]], weights) > 1:
            raise PackageError(f"the program writes into {names[0]}, and other weights read its memory as another type")
        memory, views = _memory(names[0], group)
        key = _content(memory) if not written & set(names) else (memory.name,)
        if key not in known:
            known[key] = memory
            stored.append(memory)
        for name, (shape, strides, begin) in views.items():
            found[name] = PackagedWeight(
                tensor=known[key].name,
                shape=shape,
                strides=strides,
                begin=begin,
                device=str(weights[name].device),
                written=name in written,
            )
    return stored, {name: found[name] for name in weights}


def _types(tensor: torch.Tensor, weights: Mapping[str, torch.Tensor]) -> int:
    """How many types the memory of a tensor is read as."""
    key = storage_key(tensor)
    return len({other.dtype for other in weights.values() if other.numel() and storage_key(other) == key})


_View = tuple[tuple[int, ...], tuple[int, ...], int]


def _memory(name: str, group: Mapping[str, torch.Tensor]) -> tuple[StoredTensor, dict[str, _View]]:
    """The memory of tensors that share it, and each as a view of it."""
    first = next(iter(group.values()))
    forms = {(item.shape, item.stride(), item.storage_offset()) for item in group.values()}
    if len(forms) == 1 and first.is_contiguous():
        values = first.cpu()
        return StoredTensor(name, values, tuple(first.shape)), {
            other: (tuple(item.shape), tuple(item.stride()), 0) for other, item in group.items()
        }
    begin = min(int(item.storage_offset()) for item in group.values())
    end = max(int(item.storage_offset()) + spanned(item.shape, item.stride()) for item in group.values())
    flat = first.as_strided((end - begin,), (1,), begin).cpu()
    views = {
        other: (tuple(item.shape), tuple(item.stride()), int(item.storage_offset()) - begin)
        for other, item in group.items()
    }
    return StoredTensor(name, flat, (end - begin,)), views


def _content(tensor: StoredTensor) -> tuple[Any, ...]:
    digest = hashlib.sha256()
    for piece in tensor.pieces():
        digest.update(piece)
    return tensor.values.dtype, tensor.shape, digest.digest()


def write_weights(tensors: Sequence[StoredTensor], write: Callable[[Any], object]) -> None:
    """Write the file of weights, piece by piece.

    Args:
        tensors: as they are stored; larger types first, so that readers of the format find each aligned.
        write: takes bytes.
    """
    header: dict[str, Any] = {}
    place, pads = 0, []
    for number, tensor in enumerate(tensors):
        header[tensor.name] = {
            "dtype": _NAMES[tensor.values.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + tensor.bytes],
        }
        place += tensor.bytes
        pad = -place % ALIGNMENT
        pads.append(pad)
        if pad:
            header[f"__pad_{number}"] = {"dtype": "U8", "shape": [pad], "data_offsets": [place, place + pad]}
            place += pad
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    write(struct.pack("<Q", len(text)) + text)
    for tensor, pad in zip(tensors, pads, strict=True):
        for piece in tensor.pieces():
            write(piece)
        write(b"\0" * pad)


class MappedWeights:
    """A file of weights in memory.

    Args:
        content: its bytes; writes into them must stay in this process.

    Raises:
        PackageError: it is no such file, or something in it lies outside of it.
    """

    def __init__(self, content: mmap.mmap | bytearray, begin: int, size: int) -> None:
        self._content, self._begin, self._size = content, begin, size
        self._header = self._read_header()
        self._bases: dict[str, torch.Tensor] = {}

    def _read_header(self) -> dict[str, Any]:
        view = memoryview(self._content)[self._begin : self._begin + self._size]
        try:
            (length,) = struct.unpack("<Q", view[:8])
            if length > min(_LONGEST_HEADER, self._size - 8):
                raise PackageError("the weights of the package have a header that is longer than they are")
            header = json.loads(bytes(view[8 : 8 + length]))
        except (struct.error, ValueError, RecursionError) as error:
            raise PackageError(f"the weights of the package cannot be read: {error}") from error
        finally:
            view.release()
        if not isinstance(header, dict):
            raise PackageError("the weights of the package have no header of safetensors")
        self._data = self._begin + 8 + length
        return header

    def tensor(self, weight: PackagedWeight) -> torch.Tensor:
        """A weight, in the memory of the file; on another device, a copy."""
        base = self._base(weight.tensor)
        if _extent_of(weight) + weight.begin > base.numel():
            raise PackageError(f"a weight lies outside of the tensor {weight.tensor!r} of the package")
        view = base.as_strided(weight.shape, weight.strides, weight.begin)
        return view if weight.device == "cpu" else _moved(view, weight.device)

    def _base(self, name: str) -> torch.Tensor:
        """Memory as one row."""
        if name not in self._bases:
            entry: Any = self._header.get(name)
            try:
                dtype, shape, (first, last) = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
                count = 1
                for size in shape:
                    count *= size
                fits = all(type(number) is int and number >= 0 for number in (*shape, first, last))
                if not fits or last - first != count * dtype.itemsize or self._data + last > self._begin + self._size:
                    raise ValueError("its place is not that of its values")
            except (KeyError, TypeError, ValueError) as error:
                raise PackageError(f"the package has no tensor {name!r} that can be read: {error}") from error
            if count:
                self._bases[name] = torch.frombuffer(self._content, dtype=dtype, count=count, offset=self._data + first)
            else:
                self._bases[name] = torch.empty(0, dtype=dtype)
        return self._bases[name]


def _extent_of(weight: PackagedWeight) -> int:
    if len(weight.shape) != len(weight.strides):
        raise PackageError("a weight of the package has more sizes than strides, or fewer")
    return spanned(weight.shape, weight.strides)


def _moved(view: torch.Tensor, device: str) -> torch.Tensor:
    """On a device, as it lies."""
    extent = spanned(view.shape, view.stride())
    if not view.numel() or extent != view.numel():
        return view.to(device)
    flat = view.as_strided((extent,), (1,), view.storage_offset()).to(device)
    return flat.as_strided(view.shape, view.stride())
