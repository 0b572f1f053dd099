"""Sessions of generation: what each peer keeps between two tokens.

Place: in a peer's own process, below ``worker``. Input: a request. Output: a ``Session``.
Invariants: every peer runs the same weights from the same prompts, greedily; what is timed is a token, or the prompt.
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
    """Sequences that grow by a token at each step.

    Attributes:
        bytes_of_step: what a step must read or, for a copy, reads and writes.
    """

    bytes_of_step: int

    def rewind(self) -> Any:
        """Go back to the end of the prompt; the token that follows it, of each sequence."""
        ...

    def step(self, token: Any) -> Any:
        """Take a token of each sequence, and say which ones follow; the device may not be done when it returns."""
        ...


def first_of(token: Any) -> int:
    """The token of the first sequence."""
    return int(torch.as_tensor(token).flatten()[0])


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
    kind = _Prefill if request.prefill else TorchSession
    return kind(request, _compiled(request.peer))


def _compiled(peer: str) -> Callable[[Any], Any]:
    name, _, mode = peer.partition(":")
    if name == "eager":
        return lambda function: function
    backend: Any = name
    if name != "inductor":
        import mixbackend

        backend = mixbackend.auto()
    return lambda function: torch.compile(function, backend=backend, mode=mode or None)


class TorchSession:
    """transformers' model with its static cache; the step is compiled, greedy choice included.

    Args:
        request: of the process.
        compiled: makes of a function what runs it.
    """

    def __init__(self, request: DecodeRequest, compiled: Callable[[Any], Any]) -> None:
        from transformers import StaticCache

        self._model = make_model(request.shape, request.precision, request.device)
        self.bytes_of_step = bytes_of_step(self._model, request.context, request.batch)
        self._cache: Any = StaticCache(self._model.config, max_cache_len=request.capacity)
        self._step = compiled(self._next)
        self._position = torch.zeros(1, dtype=torch.int64, device=request.device)
        self._context = request.context
        prompt = prompt_of(request.context, SHAPES[request.shape].vocabulary, request.batch)
        self._prompt = prompt.to(request.device)
        self._positions = torch.arange(request.context, device=request.device)
        with torch.inference_mode(False), torch.no_grad():
            self._first = self._next(self._prompt, self._positions)

    def rewind(self) -> Tensor:
        """Positions behind the prompt are masked, whatever they hold."""
        self._hold(self._context)
        self._position.fill_(self._context)
        return self._first

    def step(self, token: Tensor) -> Tensor:
        """One call of the compiled step."""
        with torch.no_grad():
            # The next replay of a CUDA graph writes its results where this one did.
            found = self._step(token, self._position).clone()
        self._position += 1
        return found

    def _hold(self, tokens: int) -> None:
        for layer in self._cache.layers:
            layer.cumulative_length.fill_(tokens)

    def _next(self, tokens: Tensor, positions: Tensor) -> Tensor:
        logits = self._model(
            tokens, position_ids=positions[None], past_key_values=self._cache, use_cache=True, logits_to_keep=1
        ).logits
        return logits[:, -1].argmax(-1, keepdim=True)


class _Prefill(TorchSession):
    """A step is the whole prompt, from an empty cache."""

    def rewind(self) -> Tensor:
        """Nothing to do."""
        return self._first

    def step(self, token: Tensor) -> Tensor:
        """One call of the compiled prefill."""
        self._hold(0)
        with torch.no_grad():
            return self._step(self._prompt, self._positions).clone()


class _Copy:
    """Copies memory as large as the weights."""

    def __init__(self, request: DecodeRequest) -> None:
        model = make_model(request.shape, request.precision, request.device)
        size = min(bytes_of_step(model, request.context, request.batch), _LARGEST_COPY)
        del model
        self._source = torch.ones(size, dtype=torch.uint8, device=request.device)
        self._target = torch.ones_like(self._source)
        self.bytes_of_step = 2 * size

    def rewind(self) -> int:
        """Nothing to do."""
        return 0

    def step(self, token: int) -> int:
        """One copy."""
        self._target.copy_(self._source)
        return token
