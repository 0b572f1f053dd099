"""Weights in a file: memory that the system may take back while compiled code keeps copies of its own.

Place: ``compile.weight_bindings`` with ``weights: frozen``, before constants are computed from the weights.
Input: weight tensors. Output: the same tensors, their data in a private mapping of a file without a name. Pages that
nothing reads leave memory when ``release`` says so or the system needs room; read again, they come from the file.
Invariants: values, shapes and strides stay; tensors that share storage share it afterwards; writes into them work (and
stay in memory).
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Sequence

import torch

from mixbackend.backends.common.private_folder import private_cache_folder
from mixbackend.contracts.torch_compat import storage_key
from mixbackend.host.memory import give_back_unused_memory

_ALIGNMENT = 64


class FileBackedWeights:
    """Moves weights into a file.

    Args:
        weights: tensors on the processor; others stay where they are.

    Raises:
        OSError: the cache's folder has no room or cannot be written; nothing was moved.
    """

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        movable = [weight for weight in weights if weight.device.type == "cpu" and not weight.is_inference()]
        storages = {storage_key(weight): weight.untyped_storage() for weight in movable if weight.numel()}
        self.bytes = sum(storage.nbytes() for storage in storages.values())
        self._mapping: mmap.mmap | None = None
        if not storages:
            return
        starts: dict[int, int] = {}
        with tempfile.TemporaryFile(dir=private_cache_folder("weights")) as file:
            for key, storage in storages.items():
                file.seek(-file.tell() % _ALIGNMENT, 1)
                starts[key] = file.tell()
                file.write(torch.tensor([], dtype=torch.uint8).set_(storage).numpy().data)
            file.truncate()
            file.flush()
            self._mapping = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
        moved = {
            key: torch.frombuffer(self._mapping, dtype=torch.uint8, count=storage.nbytes(), offset=starts[key])
            for key, storage in storages.items()
        }
        for weight, key in [(weight, storage_key(weight)) for weight in movable if weight.numel()]:
            values = moved[key].view(weight.dtype)
            weight.data = values.as_strided(weight.shape, weight.stride(), weight.storage_offset())
        storages.clear()
        give_back_unused_memory()

    def release(self) -> None:
        """Let go of the pages that were read so far; only while the weights were not written into."""
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_DONTNEED)
