"""Run code as if nothing around it were compiled, cast or traced.

Place: around probes, and around graphs that are compiled while another compilation, autocast or inference mode is on.
Invariants: the modes of the surrounding code hold again afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from mixbackend.contracts.torch_compat import outside_compilation


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Nothing of a surrounding compilation, autocast or inference mode reaches what runs inside."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(outside_compilation())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for device_type in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            stack.enter_context(torch.autocast(device_type, enabled=False))
        yield
