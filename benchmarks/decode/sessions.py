"""Sessions of generation: what each peer keeps between two tokens.

Place: in a peer's own process, below ``worker``. Input: a request. Output: a ``Session``.
Invariants: every peer runs the same weights from the same prompt, one sequence, greedily; prefilling is not timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from mixbackend.benchmarks.decode.model import bytes_of_step, make_model, prompt_of
from mixbackend.benchmarks.decode.request import COPY, SHAPES, DecodeRequest

_LARGEST_COPY = 1 << 30


class Session(Protocol):
    """One sequence.

    Attributes:
        bytes_of_step: what a step must read or, for a copy, reads and writes.
    """

    bytes_of_step: int

    def rewind(self) -> int:
        """Go back to the end of the prompt; the token that follows it."""
        ...

    def step(self, token: int) -> int:
        """Take a token, and say which one follows."""
        ...


def open_session(request: DecodeRequest) -> Session:
    """The session of a peer.

    Raises:
        ModuleNotFoundError: the peer's package is not installed.
    """
    if request.peer == COPY:
        return _Copy(request)
    if request.peer == "openvino":
        from mixbackend.benchmarks.decode.openvino_session import OpenVinoSession

        return OpenVinoSession(request)
    if request.peer == "llama.cpp":
        from mixbackend.benchmarks.decode.llama_cpp_session import LlamaCppSession

        return LlamaCppSession(request)
    return TorchSession(request, _compiled(request.peer))


def _compiled(peer: str) -> Callable[[Any], Any]:
    if peer == "eager":
        return lambda function: function
    if peer == "inductor":
        return lambda function: torch.compile(function, backend="inductor")
    import mixbackend

    return lambda function: torch.compile(function, backend=mixbackend.auto())


class TorchSession:
    """transformers' model with its static cache; the step is compiled, greedy choice included.

    Args:
        request: of the process.
        compiled: makes of a function what runs it.
    """

    def __init__(self, request: DecodeRequest, compiled: Callable[[Any], Any]) -> None:
        from transformers import StaticCache

        self._model = make_model(request.shape, request.precision)
        self.bytes_of_step = bytes_of_step(self._model, request.context)
        self._cache: Any = StaticCache(self._model.config, max_cache_len=request.capacity)
        self._step = compiled(self._next)
        self._position = torch.zeros(1, dtype=torch.int64)
        self._context = request.context
        prompt = prompt_of(request.context, SHAPES[request.shape].vocabulary)
        with torch.inference_mode(False), torch.no_grad():
            self._first = int(self._next(prompt, torch.arange(request.context)))

    def rewind(self) -> int:
        """Positions behind the prompt are masked, whatever they hold."""
        for layer in self._cache.layers:
            layer.cumulative_length.fill_(self._context)
        self._position.fill_(self._context)
        return self._first

    def step(self, token: int) -> int:
        """One call of the compiled step."""
        with torch.no_grad():
            found = int(self._step(torch.tensor([[token]]), self._position))
        self._position += 1
        return found

    def _next(self, tokens: Tensor, positions: Tensor) -> Tensor:
        logits = self._model(
            tokens, position_ids=positions[None], past_key_values=self._cache, use_cache=True, logits_to_keep=1
        ).logits
        return logits[0, -1].argmax()


class _Copy:
    """Copies memory as large as the weights."""

    def __init__(self, request: DecodeRequest) -> None:
        model = make_model(request.shape, request.precision)
        size = min(bytes_of_step(model, request.context), _LARGEST_COPY)
        del model
        self._source, self._target = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
        self.bytes_of_step = 2 * size

    def rewind(self) -> int:
        """Nothing to do."""
        return 0

    def step(self, token: int) -> int:
        """One copy."""
        self._target.copy_(self._source)
        return token
