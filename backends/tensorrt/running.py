"""Engines while they run: memory, streams, sizes.

Place: the ``run`` of a ``CompiledRegion``. Input: tensors of a call. Output: results in memory of torch's.
Invariants: work is in the order of the caller's current stream; results and scratch memory are torch's, so they are
counted and may be recorded into CUDA graphs; nothing waits for the GPU. A call keeps no memory: scratch memory is there
from the beginning. Calls come one at a time (``Traits.reentrant``); a call on another stream than the last one waits
for that one on the GPU, since scratch memory is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mixbackend.backends.tensorrt.api import Api
from mixbackend.backends.tensorrt.model import Entrance, Exit, Prepared
from mixbackend.backends.tensorrt.profiles import Profile

MOST_CONTEXTS = 8
"""So many sets of sizes keep an execution context; as many as CUDA graphs of one region are recorded for."""

_ShapeKey = tuple[tuple[int, ...], ...]


class Engine:
    """An engine that was opened.

    Args:
        api: TensorRT.
        serialised: the engine.
        prepared: the region that it was built for.
        profiles: that it was built with.
        device: where tensors are.

    Raises:
        ValueError: TensorRT does not take the engine, or it is one of another region.
    """

    def __init__(
        self,
        api: Api,
        serialised: bytes | memoryview,
        prepared: Prepared,
        profiles: Sequence[Profile],
        device: torch.device,
    ) -> None:
        self._api = api
        self._prepared = prepared
        self._profiles = profiles
        self._device = device
        self._engine = api.open(serialised)
        self._check()
        self._scratch = torch.empty(max(self.scratch_bytes, 1), dtype=torch.uint8, device=device)
        self._contexts: dict[_ShapeKey, _Context] = {}
        self._order = StreamOrder(device)

    @property
    def scratch_bytes(self) -> int:
        """Scratch memory that it holds."""
        return self._api.scratch_bytes(self._engine)

    def refit(self, constants: Sequence[torch.Tensor | None]) -> None:
        """Give the engine its weights; no call may be under way.

        Raises:
            ValueError: a constant is missing.
            RuntimeError: TensorRT does not take one.
        """
        weights = self._prepared.weights
        self._api.refit(self._engine, ((item.name, item.of(constant_at(item.place, constants))) for item in weights))

    def run(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Queue one call.

        Raises:
            RuntimeError: TensorRT refuses the call.
        """
        tensors = [entering(entrance, inputs[entrance.place]) for entrance in self._prepared.entrances]
        context = self._context(tensors)
        results = [torch.empty(shape, dtype=item.dtype, device=self._device) for item, shape in context.results()]
        with self._order as stream:
            if not context.queue(tensors, results, stream):
                raise RuntimeError("TensorRT refused to run the engine")
        return [
            result if item.dtype is item.wanted else result.to(item.wanted)
            for item, result in zip(self._prepared.exits, results, strict=True)
        ]

    def _check(self) -> None:
        """Hold the engine's border against the region's."""
        api, engine, prepared = self._api, self._engine, self._prepared
        found = {name: api.dtype(engine.get_tensor_dtype(name)) for name in api.input_names(engine)}
        made = {name: api.dtype(engine.get_tensor_dtype(name)) for name in api.output_names(engine)}
        wanted = {item.name: item.dtype for item in prepared.entrances}
        if not found.items() <= wanted.items() or made != {item.name: item.dtype for item in prepared.exits}:
            raise ValueError(f"the engine takes {found} and gives {made}, which is not this region's border")
        self._taken = frozenset(found)

    def _context(self, tensors: Sequence[torch.Tensor]) -> _Context:
        key = tuple(tuple(tensor.shape) for tensor in tensors) if self._profiles else ()
        known = self._contexts.get(key)
        if known is None:
            while len(self._contexts) >= MOST_CONTEXTS:
                self._contexts.pop(next(iter(self._contexts)))
            known = self._contexts[key] = self._made(key)
        return known

    def _made(self, key: _ShapeKey) -> _Context:
        context = self._api.context(self._engine)
        self._api.give_scratch(context, self._scratch.data_ptr(), self._scratch.numel())
        names = [item.name for item in self._prepared.entrances]
        if key:
            self._set_shapes(context, dict(zip(names, key, strict=True)))
        return _Context(context, self._prepared, self._taken)

    def _set_shapes(self, context: Any, shapes: dict[str, tuple[int, ...]]) -> None:
        place = next((place for place, item in enumerate(self._profiles) if item.serves(shapes)), None)
        if place is None:
            raise RuntimeError(f"no optimisation profile serves {shapes}")
        with self._order as stream:
            if not context.set_optimization_profile_async(place, stream):
                raise RuntimeError(f"TensorRT refused the optimisation profile {place}")
        for name, *_ in self._profiles[place].shapes:
            if name in self._taken and not context.set_input_shape(name, shapes[name]):
                raise RuntimeError(f"TensorRT refused the sizes {shapes[name]} of {name}")


class _Context:
    """An execution context for one set of sizes."""

    def __init__(self, context: Any, prepared: Prepared, taken: frozenset[str]) -> None:
        self._context = context
        self._inputs = [(place, item.name) for place, item in enumerate(prepared.entrances) if item.name in taken]
        self._outputs = [(item, self._shape(item)) for item in prepared.exits]
        self._addresses: dict[str, int] = {}

    def results(self) -> list[tuple[Exit, tuple[int, ...]]]:
        """What a call gives."""
        return self._outputs

    def queue(self, tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor], stream: int) -> bool:
        """Queue one call on a stream."""
        for place, name in self._inputs:
            self._set(name, tensors[place].data_ptr())
        for (item, _), result in zip(self._outputs, results, strict=True):
            self._set(item.name, result.data_ptr())
        return bool(self._context.execute_async_v3(stream))

    def _set(self, name: str, address: int) -> None:
        if self._addresses.get(name) == address:
            return
        if not self._context.set_tensor_address(name, address):
            raise RuntimeError(f"TensorRT refused the memory of {name}")
        self._addresses[name] = address

    def _shape(self, item: Exit) -> tuple[int, ...]:
        if all(isinstance(size, int) for size in item.shape):
            return tuple(item.shape)  # type: ignore[arg-type]
        return tuple(self._context.get_tensor_shape(item.name))


class StreamOrder:
    """The stream to queue a call on: after the calls before it, and between what the current stream does.

    That is the current stream, unless it is the default one: there TensorRT waits for the GPU before and after a call,
    so it has a stream of its own, which the two wait for each other on.

    Args:
        device: of the tensors; without a GPU there are no streams.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own: torch.cuda.Stream | None = None
        self._last: torch.cuda.Stream | None = None
        self._waiting: torch.cuda.Stream | None = None

    def __enter__(self) -> int:
        """Its handle."""
        if self._device.type != "cuda":
            return 0
        current = torch.cuda.current_stream(self._device)
        # A recording must not wait for streams outside of it; the code that records has waited before.
        if torch.cuda.is_current_stream_capturing():
            return int(current.cuda_stream)
        stream = self._beside(current) if current.cuda_stream == 0 else current
        if self._last is not None and self._last != stream:
            stream.wait_stream(self._last)
        self._last = stream
        return int(stream.cuda_stream)

    def __exit__(self, *_: object) -> None:
        if self._waiting is not None and self._own is not None:
            self._waiting.wait_stream(self._own)
            self._waiting = None

    def _beside(self, current: torch.cuda.Stream) -> torch.cuda.Stream:
        if self._own is None:
            self._own = torch.cuda.Stream(self._device)
        self._own.wait_stream(current)
        self._waiting = current
        return self._own


def entering(entrance: Entrance, value: torch.Tensor) -> torch.Tensor:
    """A value as the engine takes it; a copy only where it lies otherwise or has another type."""
    turned = value if entrance.order is None else value.permute(entrance.order)
    return turned.to(entrance.dtype).contiguous()


def constant_at(place: int, constants: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """The value of a constant input.

    Raises:
        ValueError: it was not given.
    """
    constant = constants[place]
    if constant is None:
        raise ValueError(f"no value for the constant input {place}")
    return constant
