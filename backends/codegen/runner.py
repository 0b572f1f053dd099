"""The run function of a compiled program.

Place: the last step of the code generator, after a target compiled the kernels or loaded them from an artifact.
Input: the text of ``runner_text`` and a target's launcher. Output: a ``RunFunction``.
Invariants: safe for many threads. The text is our own or comes from an artifact, which is trusted as far as the machine
code beside it: both are executed.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch

from mixbackend.backends.codegen.targets.target import Launch
from mixbackend.contracts.region import RunFunction

_SMALLEST_WORKSPACE = 1 << 16


def make_runner(text: str, launch: Launch, device: str = "cpu") -> RunFunction:
    """The function that runs a program on its inputs.

    Args:
        text: of ``runner_text``.
        launch: what the target made of the program.
        device: where the workspace lives.
    """
    workspaces = Workspaces(device)
    names: dict[str, Any] = {
        "empty": torch.empty,
        "empty_strided": torch.empty_strided,
        "as_strided": torch.as_strided,
        "torch": torch,
        "launch": launch,
        "take": workspaces.take,
        "give_back": workspaces.give_back,
        "nothing": torch.empty(0, dtype=torch.uint8),
    }
    exec(compile(text, "<codegen runner>", "exec"), names)
    return cast(RunFunction, names["run"])


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

    def take(self, size: int) -> torch.Tensor:
        """At least ``size`` bytes."""
        if self._device != "cpu":
            return torch.empty(size, dtype=torch.uint8, device=self._device)
        try:
            piece = self._free.pop()
        except IndexError:
            piece = None
        if piece is not None and piece.nbytes >= size:
            return piece
        return torch.empty(max(size, _SMALLEST_WORKSPACE), dtype=torch.uint8)

    def give_back(self, piece: torch.Tensor) -> None:
        """After the call, which is over on a processor when it returns."""
        if self._device == "cpu":
            self._free.append(piece)
