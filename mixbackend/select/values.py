"""The values of a call in files: what a graph is given, carried to another process without pickling.

Place: written by ``tuner`` into a private folder, read by ``worker``.
Input: tensors and numbers. Output: ``values.json`` (form of each value) and ``values.bin`` (bytes of their storages).
Invariants: values that share memory still do; strides, offsets and dtypes are kept; reading evaluates nothing.
Non-goals: tensors without strided storage; they raise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

_FORMS, _BYTES = "values.json", "values.bin"


def write_values(folder: Path, values: Sequence[Any]) -> None:
    """Write the values of a call.

    Raises:
        TypeError: a value is neither a number nor a plain tensor.
        OSError: the folder cannot hold them.
    """
    forms: list[dict[str, Any]] = []
    storages: dict[tuple[str, int], int] = {}
    sizes: list[int] = []
    with open(folder / _BYTES, "wb") as file:
        for value in values:
            if not isinstance(value, torch.Tensor):
                forms.append({"number": _number(value)})
                continue
            storage = _storage_of(value)
            key = (str(value.device), storage.data_ptr())
            if key not in storages or not storage.nbytes():
                storages[key] = len(sizes)
                sizes.append(storage.nbytes())
                _write_bytes(file, storage)
            forms.append({"storage": storages[key], **_form(value)})
    (folder / _FORMS).write_text(json.dumps({"sizes": sizes, "values": forms}))


def read_values(folder: Path) -> list[Any]:
    """Read them back; every storage is memory of its own."""
    known = json.loads((folder / _FORMS).read_text())
    with open(folder / _BYTES, "rb") as file:
        storages = [_read_bytes(file, size) for size in known["sizes"]]
    moved: dict[tuple[int, str], torch.Tensor] = {}
    values: list[Any] = []
    for form in known["values"]:
        if "number" in form:
            values.append(form["number"])
            continue
        key = (form["storage"], form["device"])
        if key not in moved:
            moved[key] = storages[form["storage"]].to(form["device"])
        empty = torch.empty(0, dtype=getattr(torch, form["dtype"]), device=form["device"])
        values.append(empty.set_(moved[key].untyped_storage(), form["offset"], form["shape"], form["stride"]))
    return values


def _number(value: Any) -> int | float | bool:
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, (bool, int, float)):
        return value
    raise TypeError(f"a value of type {type(value).__name__} cannot be carried to another process")


def _storage_of(value: torch.Tensor) -> torch.UntypedStorage:
    if value.layout is not torch.strided or type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"a {type(value).__name__} of layout {value.layout} cannot be carried to another process")
    if value.is_conj() or value.is_neg():
        raise TypeError("a tensor that is conjugated or negated when it is read cannot be carried to another process")
    return value.untyped_storage()


def _form(value: torch.Tensor) -> dict[str, Any]:
    return {
        "dtype": str(value.dtype).removeprefix("torch."),
        "device": str(value.device),
        "shape": list(value.shape),
        "stride": list(value.stride()),
        "offset": value.storage_offset(),
    }


def _write_bytes(file: BinaryIO, storage: torch.UntypedStorage) -> None:
    if storage.nbytes():
        flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        flat.cpu().numpy().tofile(file)


def _read_bytes(file: BinaryIO, size: int) -> torch.Tensor:
    content = np.fromfile(file, dtype=np.uint8, count=size)
    if content.size != size:
        raise ValueError("the file of values is cut short")
    # Copied into torch's own memory, which is aligned as kernels like it.
    return torch.from_numpy(content).clone()
