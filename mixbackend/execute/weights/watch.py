"""Watch: whether the weights that constants were made of are still what they were.

Place: asked by ``compile.weight_bindings`` at every call of a graph with constants.
Input: the weight tensors of a call. Output: yes, or what changed.
What is seen, and when:
- another object, other memory (``.data =``, ``.to()``, ``assign=True``), a counted write (in-place operations,
  ``load_state_dict``, most optimizers): at the next call;
- a step of any torch optimizer, fused ones included, which count nothing: at the next call, through torch's hook;
- writes that torch does not tell (``.data`` edits, running statistics of batch norm, a numpy alias): tensors of up to
  ``WHOLE_BYTES`` are compared whole in every call; of larger ones a cache line each and ``PIECE_BYTES`` of all of them,
  others the next time, so that an edit of a whole tensor is seen at the next call. Within ``PERIOD`` seconds of use
  ``SAMPLES`` lines of each, spread over it: an edit of a stretch of two parts in ``SAMPLES`` of a tensor, whatever the
  size of the model. And all of the memory in turns, once in ``PERIOD`` seconds where ``SHARE`` of the calls' time is
  enough for it, for that share of time else. Use is the time in which graphs run, not the pauses between calls.
  ``mixbackend.invalidate`` says it at once.
Invariants: safe for threads; a few microseconds for hundreds of tensors. It keeps the memory of its weights, so that no
other tensor can come to lie there unseen; ``abandoned`` says when nothing else does.
Non-goals: content of tensors that the processor cannot read.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.optim.optimizer import register_optimizer_step_post_hook

from mixbackend.backends.codegen.targets.cpp.plain import plain_function
from mixbackend.backends.common.compiler import NoCompilerError
from mixbackend.contracts import CodegenError
from mixbackend.contracts.torch_compat import (
    native_tensor_accessors,
    storage_users,
    tensor_implementation,
    tensor_parts,
)

WHOLE_BYTES = 256
"""Tensors of up to this many bytes are compared whole in every call."""
SAMPLES = 128
"""Cache lines of each larger tensor that are looked at within ``PERIOD``."""
PIECE_BYTES = 4096
"""Size of the pieces in which all memory is covered."""
PERIOD = 1.0
"""Seconds of use within which content is looked at, as far as ``SHARE`` allows."""
SHARE = 0.005
"""So much of the calls' time goes into looking at content. What every call looks at is charged to it, too."""

_LIST_ITEM = ctypes.cast(ctypes.pythonapi.PyList_GetItem, ctypes.c_void_p).value
_TEXT = (Path(__file__).parent / "watch.cpp").read_text()
_CHANGES = {1: "another address", 2: "a counted write", 3: "other content"}


class UnwatchableError(Exception):
    """Weights cannot be watched here, with the reason; they stay inputs."""


class WeightWatch:
    """Knows one tuple of weights.

    Args:
        weights: tensors as they are passed; equal objects may occur several times.
        places: theirs in the list of a call's arguments; one after the other where not given.
        content: whether to look at what they hold, for writes that torch does not tell.

    Raises:
        UnwatchableError: no compiler, or a torch without the accessors.
    """

    def __init__(
        self, weights: Sequence[torch.Tensor], places: Sequence[int] | None = None, content: bool = True
    ) -> None:
        self._check = _native_check()
        self._ids = tuple(map(id, weights))
        self._objects = frozenset(self._ids)
        self._stale = ""
        self._users = [storage_users(weight) for weight in weights]
        self._aliases = [weight.detach() for weight in weights]
        self._ours = [1] * len(self._aliases)
        self._tables = _Tables(weights, places or range(len(weights)), self._aliases, content)
        self._watch = ctypes.addressof(self._tables.watch)
        self._check(self._watch, True, None)
        _watches.add(self)

    def settle(self) -> None:
        """Constants and bound code exist now: what shares the weights' memory beyond its first users is ours."""
        self._ours = [storage_users(alias) - before for alias, before in zip(self._aliases, self._users, strict=True)]

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The weights, apart from autograd, as they are now."""
        return tuple(self._aliases)

    @property
    def abandoned(self) -> bool:
        """Whether nothing else holds the memory of one of the weights: no call will come with it again.

        What shared memory when ``settle`` counted may have been the user's, and be gone by now: a weight that seems
        abandoned is looked for among all objects, and counted right where it is found.
        """
        counts = [storage_users(alias) if alias.numel() > 0 else 0 for alias in self._aliases]
        pairs = enumerate(zip(counts, self._ours, strict=True))
        suspects = [place for place, (users, ours) in pairs if 0 < users <= ours]
        if not suspects:
            return False
        alive = self._alive({self._ids[place] for place in suspects})
        for place in suspects:
            if self._ids[place] not in alive:
                return True
            self._ours[place] = counts[place] - 1
        return False

    @staticmethod
    def _alive(wanted: set[int]) -> set[int]:
        """Those of these identities that tensors have."""
        return {id(item) for item in gc.get_objects() if id(item) in wanted and isinstance(item, torch.Tensor)}

    def unchanged(self, arguments: list[Any]) -> bool:
        """Whether a call comes with its very tensors, and nothing of them changed since it was made."""
        return not self._stale and not self._look(id(arguments))

    def change(self) -> str:
        """What changed since it was made, in words; empty if nothing did."""
        if not self._stale:
            self._look(None)
        return self._stale

    def _look(self, arguments: int | None) -> int:
        """The native answer; a change is remembered, other arguments are not."""
        code: int = self._check(self._watch, False, arguments)
        if code in _CHANGES:  # written only then: another thread may say meanwhile that something changed
            self._stale = _CHANGES[code]
        return code

    def mark_stale(self, objects: frozenset[int], reason: str) -> None:
        """A caller says that tensors changed; taken if one of them is watched."""
        if not objects.isdisjoint(self._objects):
            self._stale = reason


def why_unwatchable() -> str:
    """Why weights cannot be watched in this process, in words; empty if they can."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "torch.distributed shares and reshapes weights while the model runs"
    try:
        _native_check()
    except UnwatchableError as error:
        return str(error)
    return ""


def used(seconds: float) -> None:
    """Say that a call of a graph with constants took this long; looking may take a share of it."""
    _seconds[0] += seconds


def invalidate(tensors: Iterable[torch.Tensor]) -> None:
    """Constants made of these tensors are made again at the next call."""
    _mark(_parts(tensors), "invalidate() was called")


_watches: weakref.WeakSet[WeightWatch] = weakref.WeakSet()


def _parts(tensors: Iterable[torch.Tensor]) -> frozenset[int]:
    """Identities of tensors; of a subclass those of what it is made of, which is what graphs take."""
    return frozenset(id(part) for tensor in tensors for part in tensor_parts(tensor))


def _mark(objects: frozenset[int], reason: str) -> None:
    for watch in list(_watches):
        watch.mark_stale(objects, reason)


def _after_step(optimizer: torch.optim.Optimizer, _arguments: Any, _keywords: Any) -> None:
    if not _watches:
        return
    stepped = (parameter for group in optimizer.param_groups for parameter in group["params"])
    _mark(_parts(stepped), f"a step of {type(optimizer).__name__}")


class _Tables:
    """The native structure and everything that it points to."""

    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        places: Sequence[int],
        aliases: Sequence[torch.Tensor],
        content: bool,
    ) -> None:
        data_pointer, version = native_tensor_accessors() or (0, 0)
        counted = [alias for alias in aliases if not alias.is_inference()]
        whole, large, pieces = _regions(aliases if content else ())
        self._objects = _pointers([id(weight) for weight in weights])
        self._places = (ctypes.c_int64 * max(len(weights), 1))(*places)
        self._pointers = _pointers([weight.data_ptr() for weight in weights])
        self._owners = _pointers([owner for weight in weights for owner in _owners(weight)])
        self._implementations = _pointers([tensor_implementation(alias) for alias in counted])
        self._versions = (ctypes.c_int64 * max(len(counted), 1))(*[alias._version for alias in counted])
        self._whole, self._large, self._pieces = _table(whole), _table(large), _table(pieces)
        self._sample_checksums = (ctypes.c_uint64 * max(SAMPLES * len(large), 1))()
        address = ctypes.addressof
        self.watch = _Watch(
            *(len(weights), address(self._objects), address(self._places)),
            *(address(self._pointers), address(self._owners)),
            *(len(counted), address(self._implementations), address(self._versions)),
            *(_LIST_ITEM, data_pointer, version),
            *(len(whole), address(self._whole)),
            *(len(large), address(self._large), SAMPLES, address(self._sample_checksums)),
            *(len(pieces), address(self._pieces)),
            *(address(_use), SHARE, PERIOD),
        )


def _regions(tensors: Sequence[torch.Tensor]) -> tuple[_Memory, ...]:
    """What is compared whole, what is not, and the latter in pieces."""
    memory = dict.fromkeys(_memory(tensor) for tensor in tensors if tensor.device.type == "cpu" and tensor.numel())
    small, large, pieces = _Memory(), _Memory(), _Memory()
    for begin, size in memory:
        (small if size <= WHOLE_BYTES else large).add(begin, size)
    for begin, size in zip(large.begins, large.sizes, strict=True):
        whole, rest = divmod(size, PIECE_BYTES)
        pieces.begins.extend(range(begin, begin + size, PIECE_BYTES))
        pieces.sizes.extend(repeat(PIECE_BYTES, whole))
        if rest:
            pieces.sizes.append(rest)
    return small, large, pieces


class _Memory:
    """Stretches of memory, by columns.

    Models have a hundred thousand of them: an object for each would take half a second, and a full collection of
    garbage comes for every few thousand.
    """

    def __init__(self) -> None:
        self.begins, self.sizes = array("q"), array("q")

    def __len__(self) -> int:
        return len(self.begins)

    def add(self, begin: int, size: int) -> None:
        self.begins.append(begin)
        self.sizes.append(size)


def _owners(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor's implementation and its storage lie: to be fetched early, never read through."""
    return tensor_implementation(tensor), int(tensor.untyped_storage()._cdata)


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and bytes from the first to the last element, gaps included."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size()


class _Region(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_void_p), ("bytes", ctypes.c_int64), ("checksum", ctypes.c_uint64))


class _Use(ctypes.Structure):
    """Of all watches together."""

    _fields_ = (
        *(("seconds", ctypes.c_void_p), ("counted", ctypes.c_double)),
        *(("credit", ctypes.c_double), ("looks", ctypes.c_int64)),
    )


# Threads may lose each other's seconds, which does no harm.
_seconds = array("d", [0.0])
_use = _Use(seconds=_seconds.buffer_info()[0])


class _Watch(ctypes.Structure):
    _fields_ = (
        *(("tensors", ctypes.c_int64), ("objects", ctypes.c_void_p), ("places", ctypes.c_void_p)),
        *(("pointers", ctypes.c_void_p), ("owners", ctypes.c_void_p)),
        *(("versioned", ctypes.c_int64), ("implementations", ctypes.c_void_p), ("versions", ctypes.c_void_p)),
        *(("item", ctypes.c_void_p), ("data_pointer", ctypes.c_void_p), ("version", ctypes.c_void_p)),
        *(("whole", ctypes.c_int64), ("whole_regions", ctypes.c_void_p)),
        *(("large", ctypes.c_int64), ("large_regions", ctypes.c_void_p)),
        *(("samples", ctypes.c_int64), ("sample_checksums", ctypes.c_void_p)),
        *(("pieces", ctypes.c_int64), ("piece_regions", ctypes.c_void_p)),
        *(("use", ctypes.c_void_p), ("share", ctypes.c_double), ("period", ctypes.c_double)),
        *(("seen", ctypes.c_double), ("looks", ctypes.c_int64)),
        *(("due_turns", ctypes.c_double), ("due_pieces", ctypes.c_double)),
        *(("turn", ctypes.c_int64), ("piece", ctypes.c_int64)),
    )


def _pointers(values: Sequence[int]) -> Any:
    return (ctypes.c_void_p * max(len(values), 1))(*values)


def _table(regions: _Memory) -> Any:
    count = max(len(regions), 1)
    rows = array("q", bytes(ctypes.sizeof(_Region) * count))
    rows[: 3 * len(regions) : 3] = regions.begins
    rows[1 : 3 * len(regions) : 3] = regions.sizes
    return (_Region * count).from_buffer(rows)


@lru_cache(maxsize=1)
def _native_check() -> Any:
    if native_tensor_accessors() is None:
        raise UnwatchableError(f"torch {torch.__version__} does not export what watching weights needs")
    try:
        address = plain_function(_TEXT)
    except (NoCompilerError, CodegenError, OSError) as error:
        raise UnwatchableError(str(error)) from error
    register_optimizer_step_post_hook(_after_step)
    # With the GIL: the tensors cannot go away meanwhile.
    return ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(address)
