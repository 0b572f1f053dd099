"""The run function of a compiled program.

Place: the last step of the code generator, after a target compiled the kernels or loaded them from an artifact.
Input: the text of ``runner_text`` and a target's launcher. Output: a ``RunFunction``.
Invariants: safe for many threads. The text is our own or comes from an artifact, which is trusted as far as the machine
code beside it: both are executed.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch

from mixbackend.backends.codegen.random_state import take_random_state
from mixbackend.backends.codegen.targets.target import Launch
from mixbackend.backends.common.large_pages import empty_in_large_pages, in_large_pages
from mixbackend.contracts import new_result
from mixbackend.contracts.region import BoundRun, RunFunction
from mixbackend.contracts.torch_compat import current_cuda_device, gpu_allocator

_SMALLEST_WORKSPACE = 1 << 16


def make_runner(
    text: str, launch: Launch, device: str = "cpu", given: Mapping[int, torch.Tensor] | None = None
) -> RunFunction:
    """The function that runs a program on its inputs.

    Args:
        text: of ``runner_text``.
        launch: what the target made of the program.
        device: where the workspace lives.
        given: inputs that are known, by their places.
    """
    workspaces = Workspaces(device)
    names: dict[str, Any] = {
        "empty": torch.empty,
        "empty_strided": torch.empty_strided,
        "as_strided": torch.as_strided,
        "new_result": new_result,
        "torch": torch,
        "launch": launch,
        "take_random_state": take_random_state,
        "allocate": gpu_allocator(),
        "current_device": current_cuda_device,
        "run_on_device_of": _run_on_device_of,
        "take": workspaces.take,
        "give_back": workspaces.give_back,
        "nothing": torch.empty(0, dtype=torch.uint8),
        **{f"x{place}": tensor for place, tensor in (given or {}).items()},
    }
    exec(compile(text, "<codegen runner>", "exec"), names)
    run = cast(RunFunction, names["run"])
    # Its globals do not hold it: what is let go of is free at once, without a collection of garbage.
    names["run"] = weakref.proxy(run)
    return run


def _run_on_device_of(tensor: torch.Tensor, run: RunFunction, inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
    """Run with the tensor's GPU as the current one."""
    with torch.cuda.device(tensor.device):
        return run(inputs)


@dataclass(frozen=True)
class PreparedRunner:
    """Runs a program that was taken apart (``prepared``): all of it, or the rest on values prepared before.

    Attributes:
        first: run function of the part that prepares.
        places: of its inputs among the region's.
        rest: run function of the rest, on the region's inputs and the prepared values.
        bound: text of the same with constants and prepared values given.
        launch, device: of the rest, see ``make_runner``.
    """

    first: RunFunction
    places: tuple[int, ...]
    rest: RunFunction
    bound: str
    launch: Launch
    device: str

    def run(self, inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        """Prepare, then run the rest."""
        return self.rest([*inputs, *self.first([inputs[place] for place in self.places])])

    def bind(self, constants: Sequence[torch.Tensor | None]) -> BoundRun:
        """The rest, for these very constants."""
        made = self.first([constants[place] for place in self.places])
        made = in_large_pages(made) if self.device == "cpu" else made
        given = {place: value for place, value in enumerate((*constants, *made)) if value is not None}
        run = make_runner(self.bound, self.launch, self.device, given)
        return BoundRun(run, sum(value.nbytes for value in made), (f"{len(made)} weights laid out for their kernels",))


class Workspaces:
    """Memory between kernels, taken for a call and given back.

    On a processor pieces are kept, one for each call at a time, each as large as was ever needed; elsewhere torch's
    allocator does that, and knows of streams.

    Args:
        device: where they live.
    """

    _free: ClassVar[list[torch.Tensor]] = []
    """Of all programs on the processor: one is as good as another. Lists are safe between threads."""

    def __init__(self, device: str) -> None:
        self._device = device

    def take(self, size: int, device: torch.device | str | None = None) -> torch.Tensor:
        """At least ``size`` bytes, on this very device where it is given."""
        if self._device != "cpu":
            return torch.empty(size, dtype=torch.uint8, device=device or self._device)
        try:
            piece = self._free.pop()
        except IndexError:
            piece = None
        if piece is not None and piece.nbytes >= size:
            return piece
        return empty_in_large_pages(max(size, _SMALLEST_WORKSPACE))

    def give_back(self, piece: torch.Tensor) -> None:
        """After the call, which is over on a processor when it returns."""
        if self._device == "cpu":
            self._free.append(piece)
