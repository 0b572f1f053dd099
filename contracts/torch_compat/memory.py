"""What lies behind a tensor: its storage, what shares it, its native address and version.

Place: a part of the door; see ``contracts.torch_compat``.
"""

from __future__ import annotations

import ctypes
import functools
import pathlib
import sys
from collections.abc import Sequence

import torch
import torch.fx
from torch.multiprocessing.reductions import StorageWeakRef


def storage_key(value: torch.Tensor) -> int:
    """Equal for tensors that share storage, fake ones too, while both are alive."""
    return value.untyped_storage()._cdata


def values_lie_in_memory(value: object) -> bool:
    """Whether what a tensor's memory holds are its values: not where torch negates them or knows them to be zeros."""
    return not isinstance(value, torch.Tensor) or not (value._is_zerotensor() or value.is_neg())


def zeros_unwritten() -> torch._ops.OpOverload:
    """The operator that gives zeros in no memory."""
    return torch.ops.aten._efficientzerotensor.default


def storages_of(tensors: Sequence[object]) -> list[StorageWeakRef]:
    """Tells later whether memory is in use, and keeps none of it; for ``storages_in_use``."""
    return [StorageWeakRef(item.untyped_storage()) for item in tensors if isinstance(item, torch.Tensor)]


def storages_in_use(storages: Sequence[StorageWeakRef]) -> bool:
    """Whether memory of these is held."""
    return not all(storage.expired() for storage in storages)


def copies_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors with the same values and strides in memory of their own; launches few kernels on a GPU."""
    copies = [
        torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        for tensor in tensors
    ]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies


def versions_of(tensors: Sequence[torch.Tensor]) -> list[int | None]:
    """How often each was written so far, as autograd counts it; ``None`` for tensors that count nothing."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return [None if tensor.is_inference() else tensor._version for tensor in tensors]


def set_versions(tensors: Sequence[torch.Tensor], versions: Sequence[int | None]) -> None:
    """Let writes since ``versions_of`` not count."""
    if versions_of(tensors) == versions:
        return
    for tensor, version in zip(tensors, versions, strict=True):
        if version is not None and tensor._version != version:
            torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


@functools.lru_cache(maxsize=1)
def native_tensor_accessors() -> tuple[int, int] | None:
    """Addresses of two C functions, ``None`` where this torch has not both.

    The first takes a Python tensor object and gives its data pointer (the GIL must be held). The second takes the
    address of a pointer to a tensor's implementation (``tensor_implementation``) and gives its version; it must not be
    called for tensors made in inference mode.
    """
    data_pointer = getattr(torch._C._dynamo.guards, "_torchinductor_pyobject_tensor_data_ptr", None)
    library = next(pathlib.Path(torch.__file__).parent.glob("lib/libtorch_cpu.*"), None)
    if not isinstance(data_pointer, int) or library is None:
        return None
    try:
        version = ctypes.cast(ctypes.CDLL(str(library))._ZNK2at10TensorBase8_versionEv, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None
    return None if version is None else (data_pointer, version)


def tensor_implementation(tensor: torch.Tensor) -> int:
    """Address of a tensor's implementation; valid while the tensor lives and is not swapped."""
    return int(tensor._cdata)


def storage_users(tensor: torch.Tensor) -> int:
    """How many tensors and storages share the tensor's memory, itself included."""
    storage = tensor.untyped_storage()
    # One of them is the object that was just made to ask.
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1


def is_sole_holder(tensor: torch.Tensor) -> bool:
    """Whether no other tensor, storage, array or process holds the tensor's memory."""
    return not tensor.is_shared() and _holders(tensor) == _holders_of_a_new_tensor()


def _holders(tensor: torch.Tensor) -> tuple[int, int]:
    """Native ones, and those of the Python object that stands for the storage, which is the same one for all."""
    storage = tensor.untyped_storage()
    return storage_users(tensor), sys.getrefcount(storage)


@functools.lru_cache(maxsize=1)
def _holders_of_a_new_tensor() -> tuple[int, int]:
    return _holders(torch.empty(1, device="cpu"))
