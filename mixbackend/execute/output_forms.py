"""Output forms: number, shape, type and memory of what foreign code returns, looked at in every call.

Place: around the code of backends that do not promise ``Traits.fixed_outputs``, below ``execute.region_executor``.
Input: what the code returns. Output: the same; in the first call copies of it.
Reused memory: a result that is overwritten by a later call cannot be told from a right one when it is made. So the
first call's results are kept, their copies go on, and the second call must return other memory. What would keep more
than a limit is kept as the knowledge of its memory alone.
Invariants: the look costs less than a microsecond for a few outputs. Sizes that no input shows are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mixbackend.backends.common import forks
from mixbackend.contracts import Region, SymbolicSize, TensorMeta
from mixbackend.contracts.torch_compat import storage_key, storages_in_use, storages_of
from mixbackend.execute.region_sizes import shown_by_inputs
from mixbackend.execute.run_function import Run

MOST_KEPT_BYTES = 16 << 20
"""Of one region's results, from its first call to its second."""


class MalformedError(Exception):
    """Code returned something else than its region says; the text says what."""


def looked_at(region: Region, run: Run) -> Run:
    """The same code, where ``MalformedError`` is raised for what it must not return."""
    problem_of = _form_of(region)
    first = _FirstResults()

    def looked(inputs: list[Any]) -> Sequence[Any]:
        outputs = run(inputs)
        problem = problem_of(inputs, outputs)
        if problem:
            raise MalformedError(problem)
        return outputs if first.done else first.passed_on(inputs, outputs)

    return looked


class _FirstResults:
    """The results of the first call, until the second has returned others."""

    def __init__(self) -> None:
        self.done = False
        self._lock = forks.lock()
        self._kept: list[torch.Tensor] | None = None
        self._watched: list[tuple[int, Any]] = []

    def passed_on(self, inputs: Sequence[Any], outputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """What the caller gets: copies in the first call.

        Raises:
            MalformedError: these are the first call's results once more.
        """
        entered = {value.untyped_storage().data_ptr() for value in inputs if isinstance(value, torch.Tensor)}
        own = [value for value in outputs if value.numel() and value.untyped_storage().data_ptr() not in entered]
        with self._lock:
            if self.done:
                return outputs
            if self._kept is None:
                self._keep(own)
                return [_copied(value) if any(value is item for item in own) else value for value in outputs]
            reused = self._are_kept(own)
            self.done = True
            self._kept, self._watched = None, []
        if reused:
            raise MalformedError("the second call returned the memory of the first one's results")
        return outputs

    def _keep(self, values: Sequence[torch.Tensor]) -> None:
        self._kept = []
        budget = MOST_KEPT_BYTES
        for value in values:
            budget -= value.untyped_storage().nbytes()
            if budget >= 0:
                self._kept.append(value)
            else:
                self._watched.append((storage_key(value), storages_of([value])))

    def _are_kept(self, values: Sequence[torch.Tensor]) -> bool:
        # Memory that a runtime owns has another storage in every call, at the same address.
        addresses = {value.untyped_storage().data_ptr() for value in self._kept or ()}
        living = {key for key, storages in self._watched if storages_in_use(storages)}
        return any(value.untyped_storage().data_ptr() in addresses or storage_key(value) in living for value in values)


def _copied(value: torch.Tensor) -> torch.Tensor:
    """In memory of its own, with the same strides, as far as no two elements share theirs."""
    if any(step == 0 and size > 1 for size, step in zip(value.shape, value.stride(), strict=True)):
        return value.clone()
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value.detach())


def _form_of(region: Region) -> Callable[[Sequence[Any], Sequence[Any]], str]:
    """What is wrong with the form of outputs, in words; empty if nothing is. Made as text: it runs in every call."""
    names: dict[str, Any] = {"Tensor": torch.Tensor, "in_words": lambda *given: _in_words(region, *given)}
    results = [f"y{place}" for place in range(len(region.outputs))]
    lines = [f"if len(outputs) != {len(results)}: return in_words(inputs, outputs)"]
    lines += [f"{', '.join(results)}, = outputs"] if results else []
    for result, output in zip(results, region.outputs, strict=True):
        names[f"type_of_{result}"] = output.meta.dtype
        odd = [f"not isinstance({result}, Tensor)", f"{result}.dtype is not type_of_{result}"]
        sizes = _sizes(region, output.meta)
        if None in sizes:
            odd.append(f"{result}.dim() != {len(sizes)}")
            odd += [f"{result}.size({axis}) != {size}" for axis, size in enumerate(sizes) if size is not None]
        else:
            odd.append(f"{result}.shape != ({''.join(f'{size}, ' for size in sizes)})")
        lines.append(f"if {' or '.join(odd)}: return in_words(inputs, outputs)")
    text = "".join(f"    {line}\n" for line in [*lines, "return ''"])
    exec(compile(f"def problem_of(inputs, outputs):\n{text}", "<mixbackend output forms>", "exec"), names)
    problem_of: Callable[[Sequence[Any], Sequence[Any]], str] = names["problem_of"]
    return problem_of


def _sizes(region: Region, meta: TensorMeta) -> list[str | None]:
    """Python text of each size of an output; ``None`` where no input shows it."""
    return [
        (shown_by_inputs(region, size.expression) or None) if isinstance(size, SymbolicSize) else str(size)
        for size in meta.shape
    ]


def _in_words(region: Region, inputs: Sequence[Any], outputs: Sequence[Any]) -> str:
    """The first output that is not as its region says."""
    if len(outputs) != len(region.outputs):
        return f"{len(outputs)} outputs instead of {len(region.outputs)}"
    for index, (output, expected) in enumerate(zip(outputs, region.outputs, strict=True)):
        sizes = [
            None if text is None else int(eval(text, {"inputs": inputs})) for text in _sizes(region, expected.meta)
        ]
        wanted = f"{_name(expected.meta.dtype)}[{', '.join('any' if size is None else str(size) for size in sizes)}]"
        if not isinstance(output, torch.Tensor):
            return f"output {index} is a {type(output).__name__} instead of {wanted}"
        fits = output.dim() == len(sizes)
        fits = fits and all(size in (None, given) for size, given in zip(sizes, output.shape, strict=True))
        if output.dtype is not expected.meta.dtype or not fits:
            return f"output {index} is {_name(output.dtype)}{list(output.shape)} instead of {wanted}"
    return "outputs changed while they were looked at"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
